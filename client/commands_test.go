package client

import (
	"context"
	"errors"
	"testing"
)

// A request that the store refuses because of overload is sent again until its context ends. An
// answer counts even if the context ends at the same time.
func TestOverloadedRequestIsSentAgain(t *testing.T) {
	overloaded, syntax := &ServerError{Text: ErrOverloaded.Error()},
		&ServerError{Text: ErrSyntax.Error()}
	for name, test := range map[string]struct {
		// results of the attempts, in order; the context ends during the last attempt
		results []error
		want    error
	}{
		"answered at the second attempt": {results: []error{overloaded, nil}},
		"refused until the context ends": {
			results: []error{overloaded, overloaded},
			want:    ErrOverloaded,
		},
		"no answer when the context ends": {
			results: []error{overloaded, context.Canceled},
			want:    ErrOverloaded,
		},
		"no answer at all": {
			results: []error{context.Canceled},
			want:    context.Canceled,
		},
		"another error ends it": {results: []error{syntax}, want: ErrSyntax},
		"another error after an ErrOverloaded": {
			results: []error{overloaded, syntax},
			want:    ErrSyntax,
		},
	} {
		t.Run(name, func(t *testing.T) {
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			attempts := 0
			_, err := retryOverloaded(ctx, func() (answer, error) {
				if attempts++; attempts == len(test.results) {
					cancel()
				}
				return answer{}, test.results[attempts-1]
			})
			if !errors.Is(err, test.want) || attempts != len(test.results) {
				t.Errorf("after %d attempts: %v", attempts, err)
			}
		})
	}
}
