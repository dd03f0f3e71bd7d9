package client_test

import (
	"bytes"
	"context"
	"errors"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/eclipse/paho.golang/paho"

	"holdfast/client"
)

// standIn answers the requests on a topic in place of the store. answer returns the payload of the
// reply, or "" for no reply.
func standIn(t *testing.T, topic string, answer func(request []byte) string) {
	t.Helper()
	conn, err := net.Dial("tcp", strings.TrimPrefix(broker, "mqtt://"))
	if err != nil {
		t.Fatal(err)
	}
	var (
		c       *paho.Client
		replies sync.WaitGroup
	)
	c = paho.NewClient(paho.ClientConfig{
		Conn: conn,
		OnPublishReceived: []func(paho.PublishReceived) (bool,
			error){func(r paho.PublishReceived) (bool, error) {
			p := r.Packet
			payload := answer(p.Payload)
			if payload == "" {
				return true, nil
			}
			reply := &paho.Publish{
				Topic: p.Properties.ResponseTopic, QoS: 1, Payload: []byte(payload),
				Properties: &paho.PublishProperties{
					CorrelationData: p.Properties.CorrelationData,
					User: paho.UserProperties{
						{Key: "__stat", Value: "200"},
						{Key: "__ts", Value: "1700000000000:00000:StateStore"},
					},
				},
			}
			// in another goroutine: this one reads the PUBACK for which Publish waits
			replies.Go(func() { _, _ = c.Publish(t.Context(), reply) })
			return true, nil
		}},
	})
	if _, err := c.Connect(t.Context(),
		&paho.Connect{
			ClientID: "stand-in of " + topic, CleanStart: true,
			KeepAlive: 30,
		}); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Subscribe(t.Context(),
		&paho.Subscribe{Subscriptions: []paho.SubscribeOptions{{
			Topic: topic,
			QoS:   1,
		}}}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = c.Disconnect(&paho.Disconnect{})
		<-c.Done()
		replies.Wait()
	})
}

// An overloaded store does not say whether the lock is free. So Lock asks again soon, and does not
// wait for the ttl, as it does if another client has the lock.
func TestLockIsTriedAgainSoonAfterAnOverload(t *testing.T) {
	const topic, ttl = "stand-in/invoke", time.Minute
	var sets, watches atomic.Int32
	standIn(t, topic, func(request []byte) string {
		switch {
		case bytes.Contains(request, []byte("SET")) && sets.Add(1) > 2,
			bytes.Contains(request, []byte("STOP")):
			return "+OK\r\n"
		case bytes.Contains(request, []byte("VDEL")):
			return ":1\r\n"
		case bytes.Contains(request, []byte("KEYNOTIFY")) && watches.Add(1) > 2:
			return "+OK\r\n"
		default:
			return "-ERR the service is overloaded; try again\r\n"
		}
	})
	c, err := client.Connect(t.Context(),
		client.Config{Addresses: []string{broker}, ClientID: "overloaded", InvokeTopic: topic})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	ctx, cancel := context.WithTimeout(t.Context(), ttl/2)
	defer cancel()
	lock, err := c.Lock(ctx, "l", ttl)
	if err != nil {
		t.Fatalf("%v after %d SETs and %d KEYNOTIFYs", err, sets.Load(), watches.Load())
	}
	if err := lock.Unlock(t.Context()); err != nil {
		t.Error(err)
	}
}

// An attempt without an answer may have acquired the lock, whatever the results of later attempts.
// Only the answer that another client has the lock rules that out.
func TestLockReportsUnknownOutcomeUntilItIsSettled(t *testing.T) {
	const silence, held, overloaded, ok = "", answerHeld,
		"-ERR the service is overloaded; try again\r\n", answerOK
	for name, row := range map[string]struct {
		// the answers to SET and to KEYNOTIFY, in order; the last one repeats
		sets, watches []string
		want          error
	}{
		"unknown, then overloaded": {
			[]string{silence, overloaded},
			[]string{ok},
			client.ErrOutcomeUnknown,
		},
		"unknown, then no watch": {
			[]string{silence},
			[]string{overloaded},
			client.ErrOutcomeUnknown,
		},
		"unknown, then held": {
			[]string{silence, held},
			[]string{ok},
			client.ErrNotApplied,
		},
		"held, then the watch is unknown": {
			[]string{held},
			[]string{silence},
			client.ErrNotApplied,
		},
		"held, then unknown": {
			[]string{held, silence},
			[]string{ok},
			client.ErrOutcomeUnknown,
		},
		"overloaded, then no answer": {
			[]string{overloaded},
			[]string{silence},
			client.ErrNotExecuted,
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			inTurn := func(answers []string) func(int) string {
				return func(earlier int) string { return answers[min(earlier, len(answers)-1)] }
			}
			c := lockStandIn(t, time.Second, inTurn(row.sets), inTurn(row.watches), answerOK)
			ctx, cancel := context.WithTimeout(t.Context(), 4*time.Second)
			defer cancel()
			_, err := c.Lock(ctx, "l", time.Minute)
			if !errors.Is(err, row.want) || !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("%v, want %v, and the end of the context", err, row.want)
			}
			for _, other := range []error{
				client.ErrOutcomeUnknown, client.ErrNotApplied,
				client.ErrNotExecuted,
			} {
				if errors.Is(err, other) && !errors.Is(row.want, other) {
					t.Errorf("%v is also %v", err, other)
				}
			}
		})
	}
}

// lockStandIn connects a client to a stand-in for the store. set and watch get the number of
// earlier SETs or KEYNOTIFYs, and return the payload of the reply, or "" for no reply. stop is the
// payload of the reply to each STOP.
func lockStandIn(t *testing.T, timeout time.Duration, set, watch func(earlier int) string,
	stop string,
) *client.Client {
	t.Helper()
	sets, watches := 0, 0
	id := strings.ReplaceAll(t.Name(), "/", "-")
	topic := "stand-in/" + id
	standIn(t, topic, func(request []byte) string {
		switch {
		case bytes.Contains(request, []byte("STOP")):
			return stop
		case bytes.Contains(request, []byte("KEYNOTIFY")):
			watches++
			return watch(watches - 1)
		case bytes.Contains(request, []byte("VDEL")):
			return ":1\r\n"
		default:
			sets++
			return set(sets - 1)
		}
	})
	c, err := client.Connect(t.Context(),
		client.Config{
			Addresses: []string{broker}, ClientID: id, InvokeTopic: topic,
			Timeout: timeout,
		})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return c
}

const (
	answerOK   = "+OK\r\n"
	answerHeld = ":-1\r\n"
)

func always(answer string) func(int) string { return func(int) string { return answer } }

// If a client may write the key of a lock but not watch it, Lock returns the refusal of the watch,
// and not that another client has the lock.
func TestLockReportsARefusedWatch(t *testing.T) {
	c := lockStandIn(t, time.Minute, always(answerHeld), always("-ERR not authorized\r\n"),
		answerOK)
	_, err := c.Lock(t.Context(), "l", time.Minute)
	var refused *client.ServerError
	if !errors.As(err, &refused) || !errors.Is(err, client.ErrNotAuthorized) ||
		errors.Is(err, client.ErrNotApplied) {
		t.Errorf("%v", err)
	}
}

// A KEYNOTIFY without an answer is sent again after Config.Timeout, however late the context ends.
func TestLockRepeatsAnUnansweredWatch(t *testing.T) {
	c := lockStandIn(t, 500*time.Millisecond, func(earlier int) string {
		if earlier == 0 {
			return answerHeld
		}
		return answerOK
	}, func(earlier int) string {
		if earlier == 0 {
			return ""
		}
		return answerOK
	}, answerOK)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	began := time.Now()
	if _, err := c.Lock(ctx, "l", time.Minute); err != nil || time.Since(began) > 30*time.Second {
		t.Errorf("after %v: %v", time.Since(began), err)
	}
}

// Lock ends its watch with STOP, and does not wait for the answer: neither when its context has
// ended, nor when it has the lock.
func TestLockDoesNotWaitForTheEndOfItsWatch(t *testing.T) {
	for name, set := range map[string]func(int) string{
		"held by another client": always(answerHeld),
		"acquired": func(earlier int) string {
			if earlier == 0 {
				return answerHeld
			}
			return answerOK
		},
	} {
		t.Run(name, func(t *testing.T) {
			c := lockStandIn(t, time.Minute, set, always(answerOK), "")
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			defer cancel()
			began := time.Now()
			// nil if it is acquired
			want := map[string]error{"held by another client": client.ErrNotApplied}[name]
			if _, err := c.Lock(ctx, "l", time.Minute); !errors.Is(err, want) ||
				time.Since(began) > 30*time.Second {
				t.Errorf("after %v: %v, want %v", time.Since(began), err, want)
			}
		})
	}
}

// A lock whose answer came after its time to live is not held: TryLock returns it as lost, and Lock
// asks again.
func TestLateAnswerIsNoLock(t *testing.T) {
	const ttl = 200 * time.Millisecond
	late := func(earlier int) string {
		if earlier == 0 {
			time.Sleep(2 * ttl) // the answer arrives after the time to live
		}
		return answerOK
	}
	t.Run("TryLock", func(t *testing.T) {
		c := lockStandIn(t, time.Minute, late, always(answerOK), answerOK)
		lock, err := c.TryLock(t.Context(), "l", []byte("h"), ttl)
		if err != nil {
			t.Fatal(err)
		}
		select {
		case <-lock.Lost():
		default:
			t.Error("a lock that has expired is returned as held")
		}
	})
	t.Run("Lock", func(t *testing.T) {
		var sets atomic.Int32
		c := lockStandIn(t, time.Minute, func(earlier int) string {
			sets.Add(1)
			return late(earlier)
		}, always(answerOK), answerOK)
		if _, err := c.Lock(t.Context(), "l", ttl); err != nil || sets.Load() < 2 {
			t.Errorf("%v after %d SETs", err, sets.Load())
		}
	})
}

// When a client is closed, its locks are no longer renewed, and count as lost.
func TestLockIsLostWhenItsClientIsClosed(t *testing.T) {
	c := lockStandIn(t, time.Minute, always(answerOK), always(answerOK), answerOK)
	lock, err := c.Lock(t.Context(), "l", 300*time.Millisecond)
	if err != nil {
		t.Fatal(err)
	}
	_ = c.Close()
	select {
	case <-lock.Lost():
	case <-time.After(30 * time.Second):
		t.Error("it is still renewed")
	}
}

// † A renewal counts from when it was sent, however late its answer comes: the store may have
// applied it at once, so the lock expires that much earlier.
func TestRenewalCountsFromWhenItWasSent(t *testing.T) {
	const ttl, late = 3 * time.Second, 1500 * time.Millisecond
	var sent atomic.Int64 // when the renewal had arrived, since the start
	start := time.Now()
	c := lockStandIn(t, time.Minute, func(earlier int) string {
		switch earlier {
		case 0:
			return answerOK
		case 1:
			sent.Store(int64(time.Since(start)))
			time.Sleep(late) // the store is slow to answer
			return answerOK
		default:
			return ""
		}
	}, always(answerOK), answerOK)
	lock, err := c.Lock(t.Context(), "l", ttl)
	if err != nil {
		t.Fatal(err)
	}
	select {
	case <-lock.Lost():
	case <-time.After(time.Minute):
		t.Fatal("the lock is never lost")
	}
	if held := time.Since(start) - time.Duration(sent.Load()); sent.Load() == 0 || held > ttl+
		late/2 {
		t.Errorf("the lock counts as held for %v after its renewal was sent, and lives for %v",
			held, ttl)
	}
}

// † A lock is lost as soon as the store says that another client has it, and not only when its time
// to live is over. Unlock says so, also where its own deletion succeeds.
func TestLockIsLostWhenAnotherClientHasIt(t *testing.T) {
	const ttl = 6 * time.Second // it is renewed after a third of it
	c := lockStandIn(t, time.Minute, func(earlier int) string {
		if earlier == 0 {
			return answerOK
		}
		return answerHeld
	}, always(answerOK), answerOK)
	began := time.Now()
	lock, err := c.Lock(t.Context(), "l", ttl)
	if err != nil {
		t.Fatal(err)
	}
	select {
	case <-lock.Lost():
	case <-time.After(time.Minute):
		t.Fatal("the lock is never lost")
	}
	if took := time.Since(began); took > ttl*3/4 {
		t.Errorf("lost after %v", took)
	}
	if err := lock.Unlock(t.Context()); !errors.Is(err, client.ErrLockLost) {
		t.Errorf("Unlock: %v", err)
	}
}
