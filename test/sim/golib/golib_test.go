package golib

import (
	"go/format"
	"os/exec"
	"testing"

	"holdfast/test/overlay"
)

func TestEditsFitTheInstalledGo(t *testing.T) {
	if err := Add(overlay.New()); err != nil {
		t.Fatal(err)
	}
}

func TestAddedFileIsFormatted(t *testing.T) {
	formatted, err := format.Source([]byte(runtimeFile))
	if err != nil {
		t.Fatal(err)
	}
	if string(formatted) != runtimeFile {
		t.Error("runtime.go.txt is not formatted as gofmt would format it")
	}
}

// TestSchedulePassesUnderTheOverlay runs the tests of package schedule in a binary that is built
// with the overlay: those with the tag replay need it.
func TestSchedulePassesUnderTheOverlay(t *testing.T) {
	o := overlay.New()
	if err := Add(o); err != nil {
		t.Fatal(err)
	}
	written, err := o.Write(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	if output, err := exec.CommandContext(t.Context(), "go", "test", "-count=1", "-timeout", "2m",
		"-tags", Tag, "-overlay", written,
		"holdfast/test/sim/schedule").CombinedOutput(); err != nil {
		t.Errorf("%v: %s", err, output)
	}
}
