package fsm

// unpublished holds the events above the delivery watermark, the oldest first. Elements of the slice are never modified in place, so a copy of
// its header is a consistent copy of the list.
type unpublished struct {
	events    []Event
	receivers int
	bytes     int64
}

func (u *unpublished) add(event Event) {
	u.events = append(u.events, event)
	u.receivers += len(event.Receivers)
	u.bytes += event.size()
}

func (e *Event) size() int64 {
	size := len(e.Key) + len(e.Value)
	for i := range e.Receivers {
		size += len(e.Receivers[i].ClientID)
	}
	return int64(size)
}

// release removes the events up to the log index.
func (u *unpublished) release(index uint64) {
	for len(u.events) > 0 && u.events[0].Index <= index {
		u.removeFirst()
	}
}

// bound drops the oldest events until the list is within the limits, and returns the number of dropped notifications.
func (u *unpublished) bound(limits *Limits) int {
	before := u.receivers
	for len(u.events) > 0 && (int64(u.receivers) > limits.UnpublishedNotifications || u.bytes > limits.UnpublishedBytes) {
		u.removeFirst()
	}
	return before - u.receivers
}

func (u *unpublished) removeFirst() {
	u.receivers -= len(u.events[0].Receivers)
	u.bytes -= u.events[0].size()
	u.events = u.events[1:]
	if len(u.events) == 0 {
		u.events = nil // let go of the array
	}
}

// Unpublished returns the changes beyond the delivery watermark. They must not be changed.
func (m *Machine) Unpublished() []Event {
	return m.unpublished.events[:len(m.unpublished.events):len(m.unpublished.events)]
}
