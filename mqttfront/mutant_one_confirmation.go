//go:build mutant_one_confirmation

package mqttfront

import "context"

// confirmTaken is content with the confirmation before.
func (f *Front) confirmTaken(context.Context) error { return nil }
