package architecture

import (
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"strings"
	"testing"
)

// A facade connects the parts of its package, and does no work of its own.
func TestFacadesStaySmall(t *testing.T) {
	const maxFields, maxMethods = 15, 25
	for _, facade := range []struct{ folder, name string }{
		{"mqttfront", "Front"},
		{"cluster", "Node"},
	} {
		t.Run(facade.name, func(t *testing.T) {
			files, err := filepath.Glob(filepath.Join("..", "..", facade.folder, "*.go"))
			if err != nil {
				t.Fatal(err)
			}
			fields, methods := 0, 0
			for _, path := range files {
				if strings.HasSuffix(path, "_test.go") {
					continue
				}
				file, err := parser.ParseFile(token.NewFileSet(), path, nil, 0)
				if err != nil {
					t.Fatal(err)
				}
				ast.Inspect(file, func(n ast.Node) bool {
					switch n := n.(type) {
					case *ast.TypeSpec:
						if structure, ok := n.Type.(*ast.StructType); ok &&
							n.Name.Name == facade.name {
							fields = structure.Fields.NumFields()
						}
					case *ast.FuncDecl:
						if n.Recv != nil && receiverName(n) == facade.name {
							methods++
						}
					}
					return true
				})
			}
			if fields == 0 || fields > maxFields || methods == 0 || methods > maxMethods {
				t.Errorf("it has %d fields and %d methods, at most %d and %d are allowed", fields,
					methods, maxFields, maxMethods)
			}
		})
	}
}

// receiverName returns the name of a method's type.
func receiverName(method *ast.FuncDecl) string {
	of := method.Recv.List[0].Type
	if pointer, ok := of.(*ast.StarExpr); ok {
		of = pointer.X
	}
	name, _ := of.(*ast.Ident)
	if name == nil {
		return ""
	}
	return name.Name
}
