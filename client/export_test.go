package client

// WatchAgain renews the watch of a key, as a session does at intervals.
func (c *Client) WatchAgain(key string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.syncWatchLocked(subject{key: key}, nil)
}
