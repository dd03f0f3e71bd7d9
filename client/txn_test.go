package client_test

import (
	"errors"
	"reflect"
	"testing"
	"time"

	"holdfast/client"
)

// A transaction takes effect as a whole or not at all, and tells what each of its operations did.
func TestTransactionTakesEffectAsAWholeOrNotAtAll(t *testing.T) {
	c := connect(t)
	ctx := t.Context()
	token, err := c.Set(ctx, "txn/fenced", []byte("1"))
	if err != nil {
		t.Fatal(err)
	}
	old, err := c.Set(ctx, "txn/old", []byte("o"))
	if err != nil {
		t.Fatal(err)
	}
	result, err := c.Txn(ctx,
		client.OpSet("txn/fenced", []byte("2"), client.Fence(token), client.Expire(time.Hour)),
		client.OpGet("txn/none"), client.OpGet("txn/old"),
		client.OpVDel("txn/none too", []byte("x")),
		client.OpSet("txn/new", nil, client.IfAbsent(), client.Fence(token)))
	want := []client.OpResult{
		{Found: true},
		{},
		{Found: true, Value: []byte("o")},
		{},
		{Found: true},
	}
	if err != nil || !reflect.DeepEqual(result.Results, want) {
		t.Fatalf("%+v, %v", result, err)
	}
	if value, version, err := c.Get(ctx, "txn/new"); err != nil || len(value) != 0 ||
		version != result.Version {
		t.Errorf("%q %v %v", value, version, err)
	}
	var notApplied *client.NotAppliedError
	if _, err := c.Txn(ctx, client.OpDel("txn/new", client.Fence(token)),
		client.OpDel("txn/old", client.IfVersion(token))); !errors.As(err, &notApplied) ||
		notApplied.Version != old {
		t.Errorf("a condition that is not met: %v", err)
	}
	for name, test := range map[string]struct {
		operations []client.Op
		want       error
	}{
		"no token": {[]client.Op{
			client.OpSet("txn/old", nil),
			client.OpDel("txn/fenced"),
		}, client.ErrFencingTokenRequired},
		"two tokens": {[]client.Op{
			client.OpDel("txn/old", client.Fence(old)),
			client.OpDel("txn/fenced", client.Fence(token)),
		}, client.ErrNotExecuted},
		"a key twice": {
			[]client.Op{client.OpDel("txn/old"), client.OpGet("txn/old")},
			client.ErrSyntax,
		},
		"nothing":            {nil, client.ErrArgumentCount},
		"the zero operation": {[]client.Op{{}}, client.ErrNotExecuted},
		"a bad option": {
			[]client.Op{client.OpSet("txn/old", nil, client.Expire(0))},
			client.ErrNotExecuted,
		},
	} {
		t.Run(name, func(t *testing.T) {
			if _, err := c.Txn(ctx, test.operations...); !errors.Is(err, test.want) {
				t.Errorf("%v", err)
			}
		})
	}
	if value, version, err := c.Get(ctx, "txn/old"); err != nil || string(value) != "o" ||
		version != old {
		t.Errorf("%q %v %v", value, version, err)
	}
	if result, err := c.Txn(ctx, client.OpDel("txn/old"), client.OpGet("txn/new")); err != nil ||
		!result.Version.IsZero() || !result.Results[0].Found {
		t.Errorf("%+v, %v", result, err)
	}
}
