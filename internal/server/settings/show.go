package settings

import (
	"bytes"
	"fmt"
	"strings"

	"go.yaml.in/yaml/v3"
)

// YAML returns the settings as a file that Load reads back. Secrets are in files of their own, of
// which only the names are settings.
func (s *Settings) YAML() ([]byte, error) {
	root := &yaml.Node{Kind: yaml.MappingNode}
	for _, field := range s.Fields() {
		section := root
		parts := strings.Split(field.Path, ".")
		for _, name := range parts[:len(parts)-1] {
			section = child(section, name)
		}
		value, err := node(&field)
		if err != nil {
			return nil, err
		}
		section.Content = append(section.Content,
			&yaml.Node{Kind: yaml.ScalarNode, Value: parts[len(parts)-1]}, value)
	}
	var out bytes.Buffer
	encoder := yaml.NewEncoder(&out)
	encoder.SetIndent(2)
	if err := encoder.Encode(root); err != nil {
		return nil, fmt.Errorf("show settings: %w", err)
	}
	return out.Bytes(), encoder.Close()
}

func child(section *yaml.Node, name string) *yaml.Node {
	for i := 0; i < len(section.Content); i += 2 {
		if section.Content[i].Value == name {
			return section.Content[i+1]
		}
	}
	added := &yaml.Node{Kind: yaml.MappingNode}
	section.Content = append(section.Content, &yaml.Node{Kind: yaml.ScalarNode, Value: name}, added)
	return added
}

func node(field *Field) (*yaml.Node, error) {
	var value any = field.Value.String()
	switch typed := field.Value.(type) {
	case *list:
		value = []string(*typed)
		if *typed == nil {
			value = []string{}
		}
	case *Mirrors:
		value = typed.shown()
	case *boolean:
		value = bool(*typed)
	case *number:
		value = int64(*typed)
	}
	encoded := &yaml.Node{}
	if err := encoded.Encode(value); err != nil {
		return nil, fmt.Errorf("show %s: %w", field.Path, err)
	}
	if encoded.Kind == yaml.SequenceNode {
		encoded.Style = yaml.FlowStyle
	}
	return encoded, nil
}
