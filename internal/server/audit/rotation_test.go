package audit

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"holdfast/fsm"
)

// The size and the number of files are limited, and no line is lost between two files. If FILE has
// no record, Open takes the last one of FILE.1.
func TestRotationLosesNoLine(t *testing.T) {
	c := config(t)
	c.MaxBytes = 1000
	done := fsm.Result{Code: fsm.CodeOK}
	l := open(t, c)
	for index := range uint64(100) {
		l.Applied(outcome(index+1, done, set(fmt.Sprint("key-", index))))
	}
	closeLog(t, l)
	var all []Record
	for _, name := range []string{c.File + ".2", c.File + ".1", c.File} {
		if info, err := os.Stat(name); err != nil || info.Size() > c.MaxBytes {
			t.Errorf("%s: %v", name, err)
		}
		all = append(all, records(t, name)...)
	}
	for i, r := range all {
		if r.Index != 100-uint64(len(all))+uint64(i)+1 {
			t.Fatalf("record %d is of entry %d", i, r.Index)
		}
	}
	if _, err := os.Stat(c.File + ".3"); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a file too many is kept: %v", err)
	}
	if err := os.Rename(c.File, c.File+".1"); err != nil {
		t.Fatal(err)
	}
	l = open(t, c)
	if l.changes.last != (place{1, 100, 0, 0}) {
		t.Errorf("the last place is %+v", l.changes.last)
	}
	closeLog(t, l)
}

// A rotation that cannot open the next file moves no file: otherwise each attempt would push out a
// kept one.
func TestRotationThatCannotOpenTheNextFileMovesNone(t *testing.T) {
	c := config(t)
	c.MaxBytes, c.Files = 200, 1
	f, _, err := openFiles(c)
	if err != nil {
		t.Fatal(err)
	}
	line := func(index uint64) []byte { return encode(&Record{Index: index}) }
	write := func(from, to uint64) {
		for index := from; index < to; index++ {
			if err := f.append(line(index)); err != nil {
				t.Fatal(err)
			}
		}
	}
	first := uint64(c.MaxBytes)/uint64(len(line(1))) + 1
	write(1, first+1) // the last one is in the second file
	if err := os.Mkdir(c.File+".next", 0o700); err != nil {
		t.Fatal(err)
	}
	write(first+1, 3*first)
	if found := records(t, c.File+".1"); found[0].Index != 1 {
		t.Errorf("the kept file begins with %d", found[0].Index)
	}
	if err := os.Remove(c.File + ".next"); err != nil {
		t.Fatal(err)
	}
	write(3*first, 3*first+1)
	if err := f.close(); err != nil {
		t.Error(err)
	}
	if kept, current := records(t, c.File+".1"), records(t, c.File); kept[0].Index != first ||
		len(current) != 1 || current[0].Index != 3*first {
		t.Errorf("after the next rotation: %+v, %+v", kept, current)
	}
}

// If an operator moves the current file away, the next rotation still begins a new file for the
// lines after it.
func TestRotationAfterTheFileWasMovedAway(t *testing.T) {
	c := config(t)
	c.MaxBytes = 200
	f, _, err := openFiles(c)
	if err != nil {
		t.Fatal(err)
	}
	line := func(index uint64) []byte { return encode(&Record{Index: index}) }
	if err := f.append(line(1)); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(c.File, c.File+".moved"); err != nil {
		t.Fatal(err)
	}
	last := uint64(c.MaxBytes)/uint64(len(line(1))) + 1 // it is the first that finds no room
	for index := uint64(2); index <= last; index++ {
		if err := f.append(line(index)); err != nil {
			t.Fatal(err)
		}
	}
	if err := f.close(); err != nil {
		t.Error(err)
	}
	if current := records(t, c.File); len(current) != 1 || current[0].Index != last {
		t.Errorf("%+v is in the new file", current)
	}
}

// A crash between the renames of a rotation loses no line: the next start finishes the rotation.
func TestInterruptedRotationIsFinishedAtTheStart(t *testing.T) {
	c := config(t)
	l := open(t, c)
	l.Applied(outcome(1, fsm.Result{Code: fsm.CodeOK}, set("k")))
	closeLog(t, l)
	if err := os.Rename(c.File, c.File+".last"); err != nil {
		t.Fatal(err)
	}
	l = open(t, c)
	if l.changes.last != (place{1, 1, 0, 0}) {
		t.Errorf("the last place is %+v", l.changes.last)
	}
	closeLog(t, l)
	if found := records(t, c.File+".1"); len(found) != 1 {
		t.Errorf("%+v", found)
	}
}

// A rotation that was interrupted between its renames goes on from the number that these have left
// free.
func TestRotationGoesOnFromTheFreeNumber(t *testing.T) {
	for name, test := range map[string]struct {
		files int
		there string // suffix=content of each file before the call
		want  string
	}{
		"all kept files there":           {3, "1=a 2=b 3=c last=l", "1=l 2=a 3=b"},
		"interrupted after one move":     {3, "1=a 3=b last=l", "1=l 2=a 3=b"},
		"interrupted after two moves":    {3, "2=a 3=b last=l", "1=l 2=a 3=b"},
		"fewer than are kept":            {3, "1=a last=l", "1=l 2=a"},
		"none is kept any more":          {0, "last=l", ""},
		"one is kept, and there is none": {1, "last=l", "1=l"},
	} {
		t.Run(name, func(t *testing.T) {
			c := config(t)
			c.Files = test.files
			if err := os.MkdirAll(filepath.Dir(c.File), 0o700); err != nil {
				t.Fatal(err)
			}
			for file := range strings.FieldsSeq(test.there) {
				suffix, content, _ := strings.Cut(file, "=")
				if err := os.WriteFile(c.File+"."+suffix, []byte(content), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			if err := (&files{config: c}).finishRotation(); err != nil {
				t.Fatal(err)
			}
			var got []string
			for _, suffix := range []string{"1", "2", "3", "4", "last"} {
				if content, err := os.ReadFile(c.File + "." + suffix); err == nil {
					got = append(got, suffix+"="+string(content))
				}
			}
			if strings.Join(got, " ") != test.want {
				t.Errorf("%q, want %q", got, test.want)
			}
		})
	}
}

// If a file cannot be moved, lines go on in the current one, and none is lost.
func TestFailedRotationLosesNoLine(t *testing.T) {
	c := config(t)
	c.MaxBytes = 1000
	l := open(t, c)
	if err := os.MkdirAll(filepath.Join(c.File+".2", "full"), 0o700); err != nil {
		// nothing can be moved there
		t.Fatal(err)
	}
	for index := range uint64(50) {
		l.Applied(outcome(index+1, fsm.Result{Code: fsm.CodeOK}, set("k")))
	}
	closeLog(t, l)
	var found []Record
	for _, name := range []string{".1", ".last", ""} {
		if _, err := os.Stat(c.File + name); err == nil {
			found = append(found, records(t, c.File+name)...)
		}
	}
	if len(found) != 50 {
		t.Errorf("%d of 50 lines", len(found))
	}
}
