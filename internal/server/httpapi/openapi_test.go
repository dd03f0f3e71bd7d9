package httpapi

import (
	"encoding/json"
	"maps"
	"reflect"
	"slices"
	"strings"
	"testing"

	"holdfast/cluster"
	"holdfast/cluster/membership"
)

// document has the parts of openapi.json that the tests check.
type document struct {
	Paths map[string]map[string]struct {
		Summary    string
		Parameters []struct{ Name, In string }
		Responses  map[string]struct {
			Content map[string]struct{ Schema schema }
		}
		RequestBody struct {
			Content map[string]struct{ Schema schema }
		}
	}
	Components struct{ Schemas map[string]schema }
}

type schema struct {
	Ref        string `json:"$ref"`
	Type       any
	Items      *schema
	Properties map[string]schema
	Required   []string
}

func read(t *testing.T) document {
	t.Helper()
	var d document
	if err := json.Unmarshal(openAPI, &d); err != nil {
		t.Fatal(err)
	}
	return d
}

// openapi.json describes exactly the routes of the server, with their parameters.
func TestOpenAPIDescribesTheRoutes(t *testing.T) {
	d := read(t)
	described := 0
	for _, operations := range d.Paths {
		described += len(operations)
	}
	if described != len(routes()) {
		t.Errorf("%d operations are described, %d exist", described, len(routes()))
	}
	for _, r := range routes() {
		operation, ok := d.Paths[r.path][strings.ToLower(r.method)]
		if !ok {
			t.Errorf("%s %s is not described", r.method, r.path)
			continue
		}
		var query []string
		for _, p := range operation.Parameters {
			if p.In == "query" {
				query = append(query, p.Name)
			} else if !strings.Contains(r.path, "{"+p.Name+"}") {
				t.Errorf("%s %s: there is no %s in the path", r.method, r.path, p.Name)
			}
		}
		if !slices.Equal(query, strings.Fields(r.query)) {
			t.Errorf("%s %s: parameters %q are described, the server takes %q", r.method, r.path,
				query, r.query)
		}
		if operation.Summary == "" ||
			operation.Responses["default"].Content["application/json"].Schema.Ref != "#/components/schemas/Error" {
			t.Errorf("%s %s lacks a summary, or its errors", r.method, r.path)
		}
	}
}

// types are the Go types behind the schemas.
func types() map[string]reflect.Type {
	return map[string]reflect.Type{
		"Error": reflect.TypeFor[Error](), "Done": reflect.TypeFor[Done](),
		"Status": reflect.TypeFor[Status](),
		"Member": reflect.TypeFor[membership.Member](), "AddMember": reflect.TypeFor[AddMember](),
		"TransferLeader": reflect.TypeFor[TransferLeader](),
		"Health":         reflect.TypeFor[cluster.Health](),
		"MemberHealth":   reflect.TypeFor[cluster.MemberHealth](),
		"Verification":   reflect.TypeFor[cluster.Verification](),
		"StateHash":      reflect.TypeFor[cluster.StateHash](),
		"Bytes":          reflect.TypeFor[Bytes](), "Key": reflect.TypeFor[Key](),
		"Keys": reflect.TypeFor[Keys](), "KeyCount": reflect.TypeFor[KeyCount](),
		"ExportedKey":   reflect.TypeFor[ExportedKey](),
		"ExportRequest": reflect.TypeFor[ExportRequest](),
		"ExportPage":    reflect.TypeFor[ExportPage](),
		"Watch":         reflect.TypeFor[Watch](), "Watches": reflect.TypeFor[Watches](),
		"Dropped": reflect.TypeFor[EndedWatches](),
		"Owners":  reflect.TypeFor[Owners](), "Owner": reflect.TypeFor[Owner](),
		"Mirrors": reflect.TypeFor[Mirrors](), "Mirror": reflect.TypeFor[Mirror](),
		"Activity": reflect.TypeFor[Activity](), "Counter": reflect.TypeFor[Counter](),
		"Histogram": reflect.TypeFor[Histogram](), "Bucket": reflect.TypeFor[Bucket](),
		"Overview": reflect.TypeFor[Overview](),
	}
}

// jsonType returns the JSON type of a Go type. Floats are not supported.
func jsonType(of reflect.Type) string {
	switch of.Kind() {
	case reflect.String:
		return "string"
	case reflect.Bool:
		return "boolean"
	case reflect.Int, reflect.Int64, reflect.Uint64, reflect.Uint32:
		return "integer"
	case reflect.Slice:
		if of.Elem().Kind() == reflect.Uint8 { // in Base64
			return "string"
		}
		return "array"
	case reflect.Pointer:
		return jsonType(of.Elem())
	default:
		return "object"
	}
}

// Each schema has the JSON fields of its Go type, with their types. Fields of answers are required
// unless they are omitempty or omitzero.
func TestOpenAPIDescribesTheTypes(t *testing.T) {
	d := read(t)
	names := slices.Sorted(maps.Keys(d.Components.Schemas))
	if want := slices.Sorted(maps.Keys(types())); !slices.Equal(names, want) {
		t.Errorf("schemas %v, types %v", names, want)
	}
	for name, goType := range types() {
		described := d.Components.Schemas[name]
		fields := map[string]bool{}
		for i := range goType.NumField() {
			field := goType.Field(i)
			tag, options, _ := strings.Cut(field.Tag.Get("json"), ",")
			fields[tag] = true
			property, ok := described.Properties[tag]
			if !ok {
				t.Errorf("%s.%s is not described", name, tag)
				continue
			}
			kind, isText := property.Type.(string)
			if list, ok := property.Type.([]any); ok {
				kind, isText = list[0].(string), true
			}
			wanted := jsonType(field.Type)
			if field.Type.String() == "time.Time" {
				wanted = "string"
			}
			if isText && kind != wanted || !isText && property.Ref == "" {
				t.Errorf("%s.%s is described as %v, and is %s", name, tag, property.Type, wanted)
			}
			optional := options == "omitempty" || options == "omitzero" || name == "AddMember" &&
				tag == "voter" || name == "TransferLeader"
			if slices.Contains(described.Required, tag) == optional {
				t.Errorf("%s.%s: required and optional are mixed up", name, tag)
			}
		}
		for property := range described.Properties {
			if !fields[property] {
				t.Errorf("%s.%s is described, and does not exist", name, property)
			}
		}
	}
}
