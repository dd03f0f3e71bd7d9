package settings

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"
)

// Load returns the default settings overridden by the file (if its name is not empty), the
// environment, and the flags, in this order. environment has the form of os.Environ. The keys of
// flags must be paths of Fields: another key panics. Unknown keys of the file are errors. Unknown
// HOLDFAST_ variables are returned as warnings: Kubernetes sets such variables itself, for a
// service named holdfast.
func Load(file string, environment []string, flags map[string]string) (Settings, []string, error) {
	s := Default()
	fields := s.Fields()
	byPath := make(map[string]*Field, len(fields))
	byVariable := make(map[string]*Field, len(fields))
	for i := range fields {
		byPath[fields[i].Path] = &fields[i]
		byVariable[fields[i].EnvironmentVariable()] = &fields[i]
	}
	if file != "" {
		if err := loadFile(file, byPath); err != nil {
			return s, nil, err
		}
	}
	var warnings []string
	for _, variable := range environment {
		name, value, _ := strings.Cut(variable, "=")
		if !strings.HasPrefix(name, "HOLDFAST_") || slices.Contains(clientVariables(), name) {
			continue
		}
		field, known := byVariable[name]
		if !known {
			warnings = append(warnings,
				fmt.Sprintf("environment variable %s is not a setting", name))
			continue
		}
		if err := field.Value.Set(value); err != nil {
			return s, warnings, invalidValue(name, field, value, err)
		}
	}
	for path, value := range flags {
		if err := byPath[path].Value.Set(value); err != nil {
			return s, warnings, invalidValue("--"+path, byPath[path], value, err)
		}
	}
	return s, warnings, s.Validate()
}

// invalidValue returns the error for a value that a setting cannot have. name is the setting's name
// where it was set.
func invalidValue(name string, field *Field, value string, err error) error {
	if field.Path == "broker.addresses" && strings.Contains(value, "@") {
		value = "(hidden)" // it may hold a password
	}
	return &Error{Path: name, Value: value, Reason: err.Error()}
}

// clientVariables returns the environment variables of the client commands, which are no settings
// of a node.
func clientVariables() []string {
	return []string{
		"HOLDFAST_BROKER", "HOLDFAST_ADMIN", "HOLDFAST_ADMIN_CA", "HOLDFAST_ADMIN_CERT",
		"HOLDFAST_ADMIN_KEY", "HOLDFAST_FENCING_TOKEN",
	}
}

func loadFile(file string, byPath map[string]*Field) error {
	data, err := os.ReadFile(file)
	if err != nil {
		return fmt.Errorf("%w: %w", ErrInvalid, err)
	}
	decoder := yaml.NewDecoder(bytes.NewReader(data))
	var first, second yaml.Node
	if err := decoder.Decode(&first); err == nil && !errors.Is(decoder.Decode(&second), io.EOF) {
		return fmt.Errorf("%w: %s: there is more than one YAML document in it", ErrInvalid, file)
	}
	var document map[string]any
	if err := yaml.Unmarshal(data, &document); err != nil {
		return fmt.Errorf("%w: %s: %w", ErrInvalid, file, err)
	}
	if path := dottedKey(&first); path != "" {
		return fmt.Errorf("%w: %s: write it as nested keys, without a dot", ErrInvalid, path)
	}
	values := make(map[string]any)
	flatten("", document, values)
	for _, path := range slices.Sorted(maps.Keys(values)) {
		value := values[path]
		field, known := byPath[path]
		if !known {
			if empty, isMap := value.(map[string]any); (value == nil || isMap && len(empty) == 0) &&
				isSection(path, byPath) {
				continue // a section with nothing in it
			}
			// its value may be a password
			return fmt.Errorf("%w: %s: there is no such setting%s", ErrInvalid, path,
				suggestion(path, byPath))
		}
		if err := setFromFile(field, value); err != nil {
			return invalidValue(path, field, fmt.Sprint(value), err)
		}
	}
	return nil
}

// flatten adds the values of a section, by their paths. A section with nothing in it is a value.
func flatten(path string, section map[string]any, values map[string]any) {
	for key, value := range section {
		inner, isSection := value.(map[string]any)
		if isSection && len(inner) > 0 {
			flatten(path+key+".", inner, values)
		} else {
			values[path+key] = value
		}
	}
}

// dottedKey returns a key of a YAML document that has a dot in it, or an empty string. If the
// document had the same setting as nested keys, too, it would be random which one counts.
func dottedKey(node *yaml.Node) string {
	for i, child := range node.Content {
		isKey := node.Kind == yaml.MappingNode && i%2 == 0
		if isKey && strings.Contains(child.Value, ".") {
			return child.Value
		}
		if found := dottedKey(child); found != "" {
			return found
		}
	}
	return ""
}

func setFromFile(field *Field, value any) error {
	elements, isList := value.([]any)
	target, wantsList := field.Value.(*list)
	mirrors, wantsMirrors := field.Value.(*Mirrors)
	switch {
	case value == nil:
		return nil // an empty value keeps the default
	case isList && wantsMirrors:
		return mirrors.setFromFile(elements)
	case isList && wantsList:
		*target = nil
		for _, element := range elements {
			text, isString := element.(string)
			if !isString {
				return fmt.Errorf("want a list of texts: put %v in quotes", element)
			}
			*target = append(*target, text)
		}
		return nil
	case isList:
		return fmt.Errorf("want one value, not a list")
	}
	if _, isText := field.Value.(*text); isText {
		if _, isString := value.(string); !isString {
			return fmt.Errorf("want text: put it in quotes, YAML reads it as something else")
		}
	}
	return field.Value.Set(fmt.Sprint(value))
}

func isSection(path string, byPath map[string]*Field) bool {
	for known := range byPath {
		if strings.HasPrefix(known, path+".") {
			return true
		}
	}
	return false
}

// suggestion returns a hint if the path differs from a setting only in case.
func suggestion(path string, byPath map[string]*Field) string {
	for known := range byPath {
		if strings.EqualFold(known, path) {
			return "; do you mean " + known + "?"
		}
	}
	return ""
}
