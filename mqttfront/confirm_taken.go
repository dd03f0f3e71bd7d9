//go:build !mutant_one_confirmation

package mqttfront

import "context"

// confirmTaken confirms the leadership once more when outgoing connections were taken over: who slept before that has thrown out the
// true leader, and must not say anything.
func (f *Front) confirmTaken(ctx context.Context) error { return f.store.Confirm(ctx) }
