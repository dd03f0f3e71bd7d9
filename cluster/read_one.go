//go:build !mutant_read_cache

package cluster

import "holdfast/fsm"

// readOne reads the state as it is.
func (r *reader) readOne(m *fsm.Machine, command *fsm.Command) fsm.Result { return m.Read(command) }
