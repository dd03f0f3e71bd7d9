package fsm

// unpublished holds the events above the delivery watermark, the oldest first. The method bound drops the oldest. Elements of the slice are never modified
// in place, so a copy of its header is a consistent copy of the list.
type unpublished struct {
	events        []Event
	notifications int // one for each receiver of an event
	bytes         int64
}

func (u *unpublished) add(event Event) {
	u.events = append(u.events, event)
	u.notifications += len(event.Receivers)
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
	before := u.notifications
	for len(u.events) > 0 && (int64(u.notifications) > limits.UnpublishedNotifications || u.bytes > limits.UnpublishedBytes) {
		u.removeFirst()
	}
	return before - u.notifications
}

func (u *unpublished) removeFirst() {
	u.notifications -= len(u.events[0].Receivers)
	u.bytes -= u.events[0].size()
	u.events = u.events[1:]
	if len(u.events) == 0 {
		u.events = nil // release the array
	}
}

// Unpublished returns the events above the delivery watermark that were not dropped. They must not be changed.
func (m *Machine) Unpublished() []Event {
	return m.unpublished.events[:len(m.unpublished.events):len(m.unpublished.events)]
}
