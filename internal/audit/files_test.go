package audit

import (
	"errors"
	"os"
	"testing"
)

// The part of a line that a failed write has left is cut off before the next line is written, also if it could not be cut off at once.
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
