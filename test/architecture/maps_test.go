package architecture

import (
	"encoding/json"
	"errors"
	"fmt"
	"go/ast"
	"go/importer"
	"go/parser"
	"go/token"
	"go/types"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// source is a package as `go list -export` describes it.
type source struct {
	ImportPath, Dir, Export            string
	Imports, TestImports, XTestImports []string
	GoFiles                            []string
	Module                             *struct{ Main bool }
}

// sources returns the packages that match the patterns, and all that they import.
func sources(t *testing.T, patterns ...string) (packages []source) {
	t.Helper()
	command := exec.Command("go",
		append([]string{
			"list", "-export", "-deps",
			"-json=ImportPath,Dir,Export,GoFiles,Imports,TestImports,XTestImports,Module",
		},
			patterns...)...)
	command.Stderr = os.Stderr
	output, err := command.Output()
	if err != nil {
		t.Fatal(err)
	}
	for decoder := json.NewDecoder(strings.NewReader(string(output))); ; {
		var p source
		if err := decoder.Decode(&p); errors.Is(err, io.EOF) {
			return packages
		} else if err != nil {
			t.Fatal(err)
		}
		packages = append(packages, p)
	}
}

// byAddress reports whether the order of a map with such keys depends on memory addresses.
func byAddress(key types.Type) bool {
	switch under := key.Underlying().(type) {
	case *types.Pointer, *types.Chan, *types.Interface:
		return true
	case *types.Basic:
		return under.Kind() == types.UnsafePointer
	case *types.Array:
		return byAddress(under.Elem())
	case *types.Struct:
		for field := range under.Fields() {
			if byAddress(field.Type()) {
				return true
			}
		}
	}
	return false
}

// rangesByAddress returns where a package ranges over maps in the order of memory addresses, by
// range statements or by the maps package.
func rangesByAddress(fset *token.FileSet, files []*ast.File, info *types.Info) (found []string) {
	note := func(at token.Pos, of types.Type) {
		if of == nil {
			return
		}
		if m, ok := of.Underlying().(*types.Map); ok && byAddress(m.Key()) {
			position := fset.Position(at)
			found = append(found,
				fmt.Sprintf("%s:%d: %s", filepath.Base(position.Filename), position.Line, of))
		}
	}
	for _, file := range files {
		ast.Inspect(file, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.RangeStmt:
				note(n.Pos(), info.TypeOf(n.X))
			case *ast.CallExpr:
				called, ok := n.Fun.(*ast.SelectorExpr)
				if !ok || len(n.Args) == 0 {
					break
				}
				if f, ok := info.Uses[called.Sel].(*types.Func); ok && f.Pkg() != nil &&
					f.Pkg().Path() == "maps" &&
					slices.Contains([]string{"Keys", "Values", "All"}, f.Name()) {
					note(n.Pos(), info.TypeOf(n.Args[0]))
				}
			}
			return true
		})
	}
	return found
}

// addressOrder returns what rangesByAddress finds in packages, as "package file:line: type".
func addressOrder(t *testing.T, packages []source, wanted func(*source) bool) (found []string) {
	t.Helper()
	exports := make(map[string]string)
	for _, p := range packages {
		exports[p.ImportPath] = p.Export
	}
	fset := token.NewFileSet()
	imports := importer.ForCompiler(fset, "gc", func(path string) (io.ReadCloser, error) {
		export := exports[path]
		if export == "" {
			export = exports["vendor/"+path]
		}
		return os.Open(export)
	})
	for _, p := range packages {
		if !wanted(&p) {
			continue
		}
		var files []*ast.File
		for _, name := range p.GoFiles {
			file, err := parser.ParseFile(fset, filepath.Join(p.Dir, name), nil,
				parser.SkipObjectResolution)
			if err != nil {
				t.Fatal(err)
			}
			files = append(files, file)
		}
		info := &types.Info{
			Types: make(map[ast.Expr]types.TypeAndValue),
			Uses:  make(map[*ast.Ident]types.Object), Defs: make(map[*ast.Ident]types.Object),
		}
		// type errors are ignored: functions in assembly have no body, for instance
		config := types.Config{Importer: imports, Error: func(error) {}}
		_, _ = config.Check(p.ImportPath, fset, files, info)
		for _, at := range rangesByAddress(fset, files, info) {
			found = append(found, p.ImportPath+" "+at)
		}
	}
	return found
}

// No package ranges over a map in the order of memory addresses. The schedule of a simulation would
// depend on them, and the run could not be repeated from its seed.
func TestNoMapIsRangedOverByAddress(t *testing.T) {
	packages := sources(t, "holdfast/...")
	own := func(p *source) bool {
		// which sorts what it ranges over
		return p.Module != nil && p.Module.Main && p.ImportPath != "holdfast/internal/ordered"
	}
	for _, found := range addressOrder(t, packages, own) {
		t.Errorf("%s: its order depends on memory addresses; keep a slice, or sort by a number",
			found)
	}
}

// Dependencies of the simulation range over maps by address only in the files of the table, which
// also says why no schedule depends on that. The standard library is edited where it matters
// (test/sim/golib).
func TestDependenciesRangeByAddressOnlyWhereItIsKnown(t *testing.T) {
	known := map[string]string{
		"github.com/hashicorp/go-hclog interceptlogger.go":  "a logger of raft has one sink",
		"github.com/hashicorp/raft raft.go":                 "requests of VerifyLeader, which nothing but a mutant uses",
		"github.com/hashicorp/raft replication.go":          "requests of VerifyLeader, which nothing but a mutant uses",
		"google.golang.org/protobuf/internal/impl lazy.go":  "lazy fields, which no metric has",
		"github.com/anishathalye/porcupine checker.go":      "it judges when the run is over",
		"github.com/hashicorp/golang-lru/simplelru lru.go":  "of go-metrics' sinks, which nothing uses",
		"github.com/hashicorp/go-immutable-radix iradix.go": "of go-metrics' filters, which nothing sets",
		"github.com/stretchr/objx conversions.go":           "not used in a run",
	}
	packages := sources(t, "holdfast/test/sim")
	found := make(map[string]bool)
	dependency := func(p *source) bool { return p.Module != nil && !p.Module.Main }
	for _, at := range addressOrder(t, packages, dependency) {
		place, _, _ := strings.Cut(at, ":")
		if found[place] = true; known[place] == "" {
			t.Errorf("%s: its order depends on memory addresses; say here why no schedule depends on it", at)
		}
	}
	for place := range known {
		if !found[place] {
			t.Errorf("%s does so no more", place)
		}
	}
}
