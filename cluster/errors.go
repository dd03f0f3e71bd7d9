package cluster

import (
	"errors"
	"fmt"
)

var (
	// ErrNotLeader says that this node does not serve now; the command was not taken up.
	ErrNotLeader = errors.New("this node does not lead")
	// ErrOutcomeUnknown says that a command may or may not take effect.
	ErrOutcomeUnknown = errors.New("the outcome is unknown")
	// ErrNotDone says that a command had no effect and will have none.
	ErrNotDone = errors.New("the command was not executed")
	// ErrUnconfirmed says that a majority did not confirm the leadership.
	ErrUnconfirmed = fmt.Errorf("%w: no majority confirmed it", ErrNotLeader)
)
