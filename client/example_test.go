package client_test

import (
	"context"
	"errors"
	"fmt"
	"time"

	"holdfast/client"
)

// Store a value, read it, and see that conditions are checked by the store.
func Example() {
	ctx := context.Background()
	store, err := client.Connect(ctx, client.Config{Addresses: []string{broker}})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer func() { _ = store.Close() }()

	version, err := store.Set(ctx, "line-7/recipe", []byte("steel, 2mm"))
	if err != nil {
		fmt.Println(err)
		return
	}
	value, read, err := store.Get(ctx, "line-7/recipe")
	fmt.Printf("%s %v %v\n", value, read == version, err)

	_, err = store.Set(ctx, "line-7/recipe", []byte("copper"), client.IfAbsent())
	fmt.Println(errors.Is(err, client.ErrNotApplied))
	// Output:
	// steel, 2mm true <nil>
	// true
}

// Change the recipes of all machines of a line in one transaction, fenced by the token of a lock: a
// holder that lost the lock changes nothing.
func ExampleClient_Txn() {
	ctx := context.Background()
	store, err := client.Connect(ctx, client.Config{Addresses: []string{broker}})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer func() { _ = store.Close() }()

	lock, err := store.Lock(ctx, "line-8/lock", time.Minute)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer func() { _ = lock.Unlock(ctx) }()
	draft, err := store.Set(ctx, "line-8/draft", []byte("copper, 2mm"))
	if err != nil {
		fmt.Println(err)
		return
	}
	fence := client.Fence(lock.Token())
	result, err := store.Txn(ctx,
		client.OpSet("line-8/press/recipe", []byte("copper"), fence),
		client.OpSet("line-8/saw/recipe", []byte("2mm"), fence),
		// only if the draft still has this version
		client.OpDel("line-8/draft", client.IfVersion(draft), fence),
		client.OpGet("line-8/operator"),
	)
	if err != nil {
		fmt.Println(err) // errors.Is(err, client.ErrNotApplied): nothing has changed
		return
	}
	fmt.Println("draft deleted:", result.Results[2].Found, "· operator known:",
		result.Results[3].Found)
	// Output:
	// draft deleted: true · operator known: false
}

// A watcher sees every change, an expiry too.
func ExampleClient_Watch() {
	ctx := context.Background()
	store, err := client.Connect(ctx, client.Config{Addresses: []string{broker}})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer func() { _ = store.Close() }()

	watcher, err := store.Watch(ctx, "line-7/owner")
	if err != nil {
		fmt.Println(err)
		return
	}
	if _, err := store.Set(ctx, "line-7/owner", []byte("plc-a"),
		client.Expire(50*time.Millisecond)); err != nil {
		fmt.Println(err)
		return
	}
	for event := range watcher.Events() {
		switch event.Kind {
		case client.EventSet:
			fmt.Printf("owned by %s\n", event.Value)
		case client.EventDeleted:
			fmt.Println("owned by nobody")
			_ = watcher.Close(ctx)
		case client.EventGap:
			fmt.Println("something may have been missed: ask with Get")
		}
	}
	// Output:
	// owned by plc-a
	// owned by nobody
}

// A client that writes under a lock sends the lock's token. So the store refuses the writes of an
// earlier holder that was paused for too long.
func ExampleClient_Lock() {
	ctx := context.Background()
	store, err := client.Connect(ctx, client.Config{Addresses: []string{broker}})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer func() { _ = store.Close() }()

	slow, _ := store.Lock(ctx, "line-7/master", 10*time.Second)
	_ = slow.Unlock(ctx) // as if the holder had been paused until its lock expired
	fast, _ := store.Lock(ctx, "line-7/master", 10*time.Second)
	defer func() { _ = fast.Unlock(ctx) }()

	_, err = store.Set(ctx, "line-7/state", []byte("running"), client.Fence(fast.Token()))
	fmt.Println(err)
	_, err = store.Set(ctx, "line-7/state", []byte("stopped"), client.Fence(slow.Token()))
	fmt.Println(errors.Is(err, client.ErrFencingTokenLower))
	// Output:
	// <nil>
	// true
}

// A dashboard follows all keys of a line: it has their values at hand, and hears of each change.
func ExampleClient_Follow() {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	store, err := client.Connect(ctx, client.Config{Addresses: []string{broker}})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer func() { _ = store.Close() }()

	_, _ = store.Set(ctx, "line-8/press/state", []byte("running"))
	_, _ = store.Set(ctx, "line-8/oven/state", []byte("heating"))
	line, err := store.Follow(ctx, "line-8/*/state")
	if err != nil {
		fmt.Println(err)
		return
	}
	oven, _ := line.Get("line-8/oven/state")
	fmt.Printf("the oven is %s\n", oven.Value)

	changed := 0
	for event := range line.Changes(ctx) { // first what is there, then what changes
		fmt.Printf("%s is %s\n", event.Key, event.Value)
		switch changed++; changed {
		case 2:
			_, _ = store.Set(ctx, "line-8/press/state", []byte("stopped"))
		case 3:
			cancel()
		}
	}
	// Output:
	// the oven is heating
	// line-8/oven/state is heating
	// line-8/press/state is running
	// line-8/press/state is stopped
}
