// Package overlay edits source files for one build, by `go build -overlay`: the files on disk stay
// as they are.
package overlay

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"strings"
)

// Edit replaces a text that occurs exactly once in a file.
type Edit struct {
	File string // relative to the root that Overlay.Edit gets, with slashes
	Old  string
	New  string
}

// ErrNotOnce says that the old text of an edit is missing, or occurs more than once.
var ErrNotOnce = errors.New("the old text must occur exactly once")

// Overlay collects edited files. It is not safe for concurrent use.
type Overlay struct {
	contents map[string]string // by absolute path
}

// New returns an overlay without edits.
func New() *Overlay { return &Overlay{contents: make(map[string]string)} }

// Edit applies edits to files below a root, one after the other. An edit whose old text does not
// occur exactly once returns ErrNotOnce and names the file and the text.
func (o *Overlay) Edit(root string, edits ...Edit) error {
	for _, e := range edits {
		path := filepath.Join(root, filepath.FromSlash(e.File))
		content, edited := o.contents[path]
		if !edited {
			read, err := os.ReadFile(path)
			if err != nil {
				return fmt.Errorf("edit for an overlay: %w", err)
			}
			content = string(read)
		}
		if n := strings.Count(content, e.Old); n != 1 {
			return fmt.Errorf("edit %s: %w, and occurs %d times:\n%s", path, ErrNotOnce, n, e.Old)
		}
		o.contents[path] = strings.Replace(content, e.Old, e.New, 1)
	}
	return nil
}

// Add adds a file that is not on disk below a root.
func (o *Overlay) Add(root, file, content string) {
	o.contents[filepath.Join(root, filepath.FromSlash(file))] = content
}

// Write writes the edited files into a folder, and returns the path of the file for `go build
// -overlay`.
func (o *Overlay) Write(folder string) (string, error) {
	folder, err := filepath.Abs(folder)
	if err != nil {
		return "", fmt.Errorf("write an overlay: %w", err)
	}
	if err := os.MkdirAll(folder, 0o750); err != nil {
		return "", fmt.Errorf("write an overlay: %w", err)
	}
	replace := make(map[string]string, len(o.contents))
	for path, content := range o.contents {
		name := filepath.Join(folder, url.PathEscape(filepath.ToSlash(path)))
		if err := os.WriteFile(name, []byte(content), 0o600); err != nil {
			return "", fmt.Errorf("write an overlay: %w", err)
		}
		replace[path] = name
	}
	encoded, err := json.MarshalIndent(map[string]any{"Replace": replace}, "", "\t")
	if err != nil {
		return "", fmt.Errorf("write an overlay: %w", err)
	}
	name := filepath.Join(folder, "overlay.json")
	if err := os.WriteFile(name, encoded, 0o600); err != nil {
		return "", fmt.Errorf("write an overlay: %w", err)
	}
	return name, nil
}
