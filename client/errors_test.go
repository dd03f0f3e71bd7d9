package client

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
)

// The error of a read has no unknown outcome, and whatever else the error says.
func TestReadHasNoUnknownOutcome(t *testing.T) {
	err := about("get", "k", ofRead(fmt.Errorf("%w: %w: %w", ErrOutcomeUnknown, ErrNoStore,
		context.DeadlineExceeded)))
	for target, want := range map[error]bool{
		ErrNoAnswer: true, ErrOutcomeUnknown: false, ErrNoStore: true,
		context.DeadlineExceeded: true, ErrNotExecuted: false,
	} {
		if errors.Is(err, target) != want {
			t.Errorf("%v: %t", target, !want)
		}
	}
	const text = `get "k": no answer in time: no Holdfast node answers at this broker: context deadline exceeded`
	if err.Error() != text {
		t.Error(err)
	}
	var answered *ServerError
	if err := ofRead(&ServerError{Text: ErrNotAuthorized.Error()}); !errors.As(err, &answered) ||
		errors.Is(err, ErrNoAnswer) || !errors.Is(err, ErrNotAuthorized) {
		t.Errorf("an answer: %v", err)
	}
	if ofRead(nil) != nil || about("get", "k", nil) != nil {
		t.Error("no error is one")
	}
}

// A long key is cut off in the text of an error.
func TestLongKeyIsCutOffInErrors(t *testing.T) {
	if err := about("set", strings.Repeat("k", 1000), ErrQuota); len(err.Error()) > 120 ||
		!errors.Is(err, ErrQuota) {
		t.Error(err)
	}
}

// Events print as people read them.
func TestEventsPrint(t *testing.T) {
	version, err := ParseVersion("1696374425000:0:StateStore")
	if err != nil {
		t.Fatal(err)
	}
	for want, event := range map[string]Event{
		`set "k" "v" 1696374425000:0:StateStore`: {EventSet, "k", []byte("v"), version},
		`deleted "k" 1696374425000:0:StateStore`: {EventDeleted, "k", nil, version},
		`gap "lines/*"`:                          {Kind: EventGap, Key: "lines/*"},
		`set "k" "` + strings.Repeat("x", 64) + `"…`: {
			Kind: EventSet, Key: "k", Value: []byte(strings.Repeat("x", 65)),
		},
		`EventKind(0) ""`: {},
	} {
		if got := event.String(); got != want {
			t.Errorf("%s, want %s", got, want)
		}
	}
}
