//go:build !mutant_take_over_silent

package mqttfront

import "holdfast/fsm"

// unpublished returns the notifications that the last leader may not have published. Whoever takes over publishes them.
func unpublished(m *fsm.Machine) []fsm.Event { return m.Unpublished() }
