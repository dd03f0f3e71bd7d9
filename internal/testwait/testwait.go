// Package testwait waits in tests for what no event reports.
package testwait

import (
	"testing"
	"time"
)

// Until checks every 5 ms whether a condition holds, and fails the test if it does not within 30 s.
// what says what is waited for. A test that passes waits much less: the limit is for a busy
// machine.
func Until(t testing.TB, what string, condition func() bool) {
	t.Helper()
	wait(t, 30*time.Second, 5*time.Millisecond, what, condition)
}

// Within is Until with another limit. It checks 300 times within the limit, and at least every 200
// ms: a condition with a long limit may take a process to check.
func Within(t testing.TB, limit time.Duration, what string, condition func() bool) {
	t.Helper()
	wait(t, limit, min(limit/300, 200*time.Millisecond), what, condition)
}

func wait(t testing.TB, limit, interval time.Duration, what string, condition func() bool) {
	t.Helper()
	for deadline := time.Now().Add(limit); !condition(); <-time.After(interval) {
		if time.Now().After(deadline) {
			t.Fatalf("did not happen within %v: %s", limit, what)
		}
	}
}
