package audit

import (
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"testing"
)

// The part of a line that a failed write has left is cut off before the next line is written, also
// if it could not be cut off at once.
func TestTornLineIsCutOffBeforeTheNext(t *testing.T) {
	c := config(t)
	f, _, err := openFiles(c)
	if err != nil {
		t.Fatal(err)
	}
	if err := f.append(encode(&Record{Index: 1})); err != nil {
		t.Fatal(err)
	}
	if _, err := f.file.WriteString(`{"index":2,"te`); err != nil {
		t.Fatal(err)
	}
	f.torn = true
	healthy := f.file
	if f.file, err = os.Open(c.File); err != nil { // it can neither be cut nor written
		t.Fatal(err)
	}
	if err := f.append(encode(&Record{Index: 3})); err == nil {
		t.Error("a line was written behind a torn one")
	}
	if err := f.file.Close(); err != nil {
		t.Fatal(err)
	}
	f.file = healthy
	if err := errors.Join(f.append(encode(&Record{Index: 4})), f.close()); err != nil {
		t.Fatal(err)
	}
	if found := records(t, c.File); len(found) != 2 || found[0].Index != 1 || found[1].Index != 4 {
		t.Errorf("%+v", found)
	}
}

// Lines go to the file that has the name, also after an operator has removed, renamed or replaced
// it.
func TestLinesGoToTheFileOfTheName(t *testing.T) {
	for name, happen := range map[string]func(file string) error{
		"removed":            os.Remove,
		"its folder removed": func(file string) error { return os.RemoveAll(filepath.Dir(file)) },
		"renamed":            func(file string) error { return os.Rename(file, file+".kept") },
		"replaced": func(file string) error {
			return errors.Join(os.Remove(file),
				os.WriteFile(file, nil, 0o600))
		},
	} {
		t.Run(name, func(t *testing.T) {
			file := filepath.Join(t.TempDir(), "audit", "log")
			f, _, err := openFiles(Config{
				File: file, MaxBytes: 1 << 20, Files: 2,
				Log: slog.New(slog.DiscardHandler),
			})
			if err != nil {
				t.Fatal(err)
			}
			if err := errors.Join(f.append([]byte("one\n")), happen(file),
				f.append([]byte("two\n")), f.append([]byte("three\n")), f.close()); err != nil {
				t.Fatal(err)
			}
			if got, err := os.ReadFile(file); string(got) != "two\nthree\n" {
				t.Errorf("%q, %v", got, err)
			}
		})
	}
}
