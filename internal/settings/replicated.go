package settings

import "holdfast/fsm"

// Replicated returns the settings that decide the outcomes of requests. They are replicated through the log. memory is the memory that the process may
// use, in bytes. The result has no policy.
func (s *Settings) Replicated(memory int64) fsm.Settings {
	replicated := fsm.DefaultSettings()
	replicated.CaseInsensitive = s.Protocol.CaseInsensitive
	switch s.Protocol.Dialect {
	case "documented":
		replicated.Dialect = fsm.DialectRuleDocumented
	case "sdk":
		replicated.Dialect = fsm.DialectRuleSDK
	}
	limits := &replicated.Limits
	limits.KeyBytes, limits.ValueBytes, limits.Keys = int64(s.Limits.KeyBytes), int64(s.Limits.ValueBytes), s.Limits.Keys
	limits.Watches, limits.DedupEntries = s.Limits.Watches, s.Limits.DedupEntries
	limits.WatchesPerClient, limits.DedupPerClient = s.Limits.WatchesPerClient, s.Limits.DedupEntriesPerClient
	if limits.TotalBytes = int64(s.Limits.TotalBytes); s.Limits.TotalBytes == Auto {
		// Limits above 128 MiB are rounded down to 64 MiB steps, so that nodes of one kind agree although their memories differ by a little.
		const grain = 64 << 20
		// A quarter leaves room: a key costs about 103 bytes beyond key and value, the dedup table needs memory, too, and while a snapshot is restored
		// there are two states. All members refuse what exceeds the limit. Without it, all could run out of memory at once.
		if limits.TotalBytes = memory / 4; limits.TotalBytes > 2*grain {
			limits.TotalBytes -= limits.TotalBytes % grain
		}
	}
	replicated.WatchTTL = s.Watch.TTL.Milliseconds()
	replicated.Mirrors = s.Mirrors
	replicated.NotificationExpiry = s.Watch.NotificationExpiry.Milliseconds()
	return replicated
}
