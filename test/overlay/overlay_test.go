package overlay

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestEditMustMatchExactlyOnce(t *testing.T) {
	root := t.TempDir()
	if err := os.WriteFile(filepath.Join(root, "a.go"), []byte("one two two"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, old := range []string{"two", "three"} {
		t.Run(old, func(t *testing.T) {
			if err := New().Edit(root, Edit{"a.go", old, "x"}); !errors.Is(err, ErrNotOnce) ||
				!strings.Contains(err.Error(), "a.go") || !strings.Contains(err.Error(), old) {
				t.Errorf("edit of %q: %v", old, err)
			}
		})
	}
	if err := New().Edit(root, Edit{"b.go", "one", "x"}); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("edit of a missing file: %v", err)
	}
}

func TestWrittenOverlayHoldsAllEdits(t *testing.T) {
	root, folder := t.TempDir(), t.TempDir()
	path := filepath.Join(root, "a.go")
	if err := os.WriteFile(path, []byte("one two"), 0o600); err != nil {
		t.Fatal(err)
	}
	o := New()
	if err := o.Edit(root, Edit{"a.go", "one", "three"},
		Edit{"a.go", "three two", "four"}); err != nil {
		t.Fatal(err)
	}
	o.Add(root, "new.go", "five")
	name, err := o.Write(folder)
	if err != nil {
		t.Fatal(err)
	}
	encoded, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	var written struct{ Replace map[string]string }
	if err := json.Unmarshal(encoded, &written); err != nil {
		t.Fatal(err)
	}
	for file, want := range map[string]string{"a.go": "four", "new.go": "five"} {
		t.Run(file, func(t *testing.T) {
			if content, err := os.ReadFile(
				written.Replace[filepath.Join(root, file)]); err != nil || string(content) != want {
				t.Errorf("%q, %v", content, err)
			}
		})
	}
	if content, err := os.ReadFile(path); err != nil || string(content) != "one two" {
		t.Errorf("the file on disk was changed: %q, %v", content, err)
	}
}
