//go:build !mutant_fence_off

package fsm

import "holdfast/hlc"

// fence checks a fencing token, if there is one, against the clock and the key. present says whether the key exists.
func (m *Machine) fence(token *hlc.Timestamp, found *record, present bool) ErrorCode {
	if token.TooFarAhead(m.wall) {
		return ErrorTokenSkew
	}
	if !present || found.token == nil {
		return NoError
	}
	if token.IsZero() {
		return ErrorTokenRequired
	}
	if token.Before(*found.token) {
		return ErrorTokenLower
	}
	return NoError
}
