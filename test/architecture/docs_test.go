package architecture

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// TestDocumentationNamesWhatExists: whoever follows a name from the documentation finds the test or the file.
func TestDocumentationNamesWhatExists(t *testing.T) {
	root := filepath.Join("..", "..")
	declared, files := make(map[string]bool), make(map[string]bool)
	function := regexp.MustCompile(`(?m)^func ((?:Test|Fuzz|Benchmark)\w+)\(`)
	err := filepath.WalkDir(root, func(path string, entry os.DirEntry, err error) error {
		if err != nil || entry.IsDir() || filepath.Ext(path) != ".go" {
			return err
		}
		relative, err := filepath.Rel(root, path)
		if err != nil {
			return err
		}
		files[filepath.ToSlash(relative)] = true
		if !strings.HasSuffix(path, "_test.go") {
			return nil
		}
		source, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		for _, match := range function.FindAllSubmatch(source, -1) {
			declared[string(match[1])] = true
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	pages, err := filepath.Glob(filepath.Join(root, "docs", "*.md"))
	if err != nil || len(pages) == 0 {
		t.Fatalf("%d pages: %v", len(pages), err)
	}
	test, file := regexp.MustCompile("`((?:Test|Fuzz|Benchmark)[A-Z]\\w+)`"), regexp.MustCompile("`([a-z]+(?:/[a-z0-9_]+)+\\.go)`")
	for _, page := range append(pages, filepath.Join(root, "README.md")) {
		text, err := os.ReadFile(page)
		if err != nil {
			t.Fatal(err)
		}
		for _, match := range test.FindAllSubmatch(text, -1) {
			if name := string(match[1]); !declared[name] {
				t.Errorf("%s names %s, which does not exist", filepath.Base(page), name)
			}
		}
		for _, match := range file.FindAllSubmatch(text, -1) {
			if name := string(match[1]); !files[name] {
				t.Errorf("%s names %s, which does not exist", filepath.Base(page), name)
			}
		}
	}
}
