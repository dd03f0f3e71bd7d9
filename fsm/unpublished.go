package fsm

// unpublished holds the events above the delivery watermark, the oldest first. The method bound
// drops the oldest. Elements of the slice are never modified in place, so a copy of its header is a
// consistent copy of the list.
type unpublished struct {
	events        []Event
	notifications int // one for each receiver of an event
	bytes         int64
	removedBytes  int64 // size of the removed events that the array of the slice may still hold
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

// dropExcess drops the oldest events until the list is within the limits, and returns the number of
// dropped notifications.
func (u *unpublished) dropExcess(limits *Limits) int {
	before := u.notifications
	for len(u.events) > 0 && (int64(u.notifications) > limits.UnpublishedNotifications ||
		u.bytes > limits.UnpublishedBytes) {
		u.removeFirst()
	}
	return before - u.notifications
}

// removeFirst removes the oldest event. The array of the slice still refers to removed events:
// snapshots may share it. So the list gets a new array when these are larger than those that are
// left.
func (u *unpublished) removeFirst() {
	const least = 64 << 10 // bytes of removed events that are not worth a new array
	size := u.events[0].size()
	u.notifications -= len(u.events[0].Receivers)
	u.bytes, u.removedBytes = u.bytes-size, u.removedBytes+size
	u.events = u.events[1:]
	if len(u.events) == 0 || u.removedBytes > u.bytes+least {
		u.events, u.removedBytes = append([]Event(nil), u.events...), 0
	}
}

// Unpublished returns the events above the delivery watermark that were not dropped. They must not
// be changed.
func (m *Machine) Unpublished() []Event {
	return m.unpublished.events[:len(m.unpublished.events):len(m.unpublished.events)]
}
