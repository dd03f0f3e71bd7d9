package client

// Stall keeps the Follower from applying events and reads until release is called. Its watch
// receives more notifications meanwhile.
func (f *Follower) Stall() (release func()) {
	f.mu.RLock()
	return f.mu.RUnlock
}
