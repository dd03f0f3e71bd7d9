package cluster

import (
	"testing"
	"testing/synctest"
)

// † When a node has begun to wait for its goroutines, it starts no more. Handlers of calls still
// run then, and a goroutine that they started would outlive the node, or be added to the WaitGroup
// during its Wait.
func TestNothingStartsWhileANodeWaitsForItsGoroutines(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var l lifecycle
		release, waited := make(chan struct{}), false
		if !l.start(func() { <-release }) {
			t.Error("a goroutine was not started")
		}
		go func() {
			l.wait()
			waited = true
		}()
		synctest.Wait()
		if l.start(func() { t.Error("a goroutine ran") }) {
			t.Error("a goroutine was started")
		}
		close(release)
		synctest.Wait()
		if !waited {
			t.Error("wait did not return")
		}
	})
}
