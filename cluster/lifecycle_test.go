package cluster

import (
	"testing"
	"testing/synctest"
)

// † Handlers of calls run on while a node closes: what they start then would outlive it, or be added to a counter that is waited for.
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
