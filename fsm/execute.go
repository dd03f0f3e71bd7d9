package fsm

import (
	"math"

	"github.com/cespare/xxhash/v2"

	"holdfast/hlc"
)

// execute runs one command and stores its result in Results[position].
func (m *Machine) execute(position int, command *Command, storageLow bool, outcome *EntryOutcome) {
	result := &outcome.Results[position]
	switch command.Kind {
	case KindReject:
		*result = m.reject(command)
	case KindClientGone:
		m.clientGone(command)
	case KindWatchEnd:
		m.watchEnd(command)
	case KindConfigure:
		m.configure(command)
	case KindAdvance:
		m.raiseClocks(&command.Floor)
		m.raiseVersion(command.Version)
	case KindPinNonVoter, KindAllowPromotion:
		*result = m.setPinned(string(command.Key), command.Kind == KindPinNonVoter)
	case KindStage:
		*result = m.stage(command)
	case KindRestore:
		*result = m.restoreStaged(command)
	case KindGet:
		*result = m.Read(command)
	default:
		m.executeOnce(position, command, storageLow, outcome)
	}
	m.mixIntoStateHash('C', uint64(command.Kind), uint64(result.Code), uint64(result.Error),
		uint64(result.version.Wall), result.version.Counter)
}

// executeOnce runs a client's write and remembers its outcome. For a copy of a remembered request
// the result is that outcome, and the copy has no effect. Where the broker vouches for who is
// asking, somebody else may send the same bytes: the outcome is then for those only that may make
// the request.
func (m *Machine) executeOnce(position int, command *Command, storageLow bool,
	outcome *EntryOutcome,
) {
	result := &outcome.Results[position]
	if command.ID.IsZero() {
		m.write(position, command, storageLow, outcome)
		return
	}
	client := clientHash(command.Principal.ClientID)
	if earlier, ok := m.dedup.find(command.ID); ok {
		m.prolong(earlier, command.Lifetime)
		*result = m.outcomeFor(command, &earlier)
		return
	}
	if !m.dedup.hasRoom(client, &m.settings.Limits) || command.Kind == KindTxn &&
		!m.dedup.replies.hasRoom(client, command.Operations) {
		*result = m.recordRefusal(command.ID, client, command.Lifetime,
			overloaded(m.settings.dialect(command.Dialect)))
		return
	}
	m.write(position, command, storageLow, outcome)
	m.dedup.put(dedupEntryOf(command.ID, m.index, m.now+command.Lifetime, client, result),
		newKeptReplies(command.ID, client, result.Replies))
}

// outcomeFor returns a remembered outcome, for whoever sent a copy of the request. Where the broker
// vouches for clients, that may be another one, which the policy does not let make the request.
func (m *Machine) outcomeFor(command *Command, earlier *dedupEntry) Result {
	if earlier.client != clientHash(command.Principal.ClientID) && !m.mayMake(command) {
		return Result{
			Code: CodeError, Error: ErrorNotAuthorized,
			Dialect: m.settings.dialect(command.Dialect), Repeat: true,
		}
	}
	return m.dedup.result(earlier)
}

// mayMake reports whether the policy allows a client's write: each operation of a transaction. It
// looks at nothing else of the request.
func (m *Machine) mayMake(command *Command) bool {
	for i := range command.Operations {
		if !m.mayMake(&command.Operations[i]) {
			return false
		}
	}
	switch {
	case command.Unidentified:
		return false
	case m.settings.Policy == nil, command.Kind == KindTxn, command.Pattern:
		return true
	}
	return m.settings.Policy.FirstRule(&command.Principal, command.Kind.access(), command.Key) != 0
}

// prolong extends the dedup entry to this copy's lifetime: another member may receive this copy
// after the first lifetime has ended.
func (m *Machine) prolong(earlier dedupEntry, lifetime int64) {
	m.dedup.prolong(earlier, m.now+lifetime)
}

// recordRefusal remembers a refusal as the outcome of a request, in the reserve of the dedup table
// (the part that only refusals use). If the reserve is full, the result is CodeNoReply: an overload
// error would be wrong, because a later copy could still take effect.
func (m *Machine) recordRefusal(id RequestID, client uint64, lifetime int64, result Result) Result {
	if !m.dedup.hasReserve(client, &m.settings.Limits) {
		return Result{Code: CodeNoReply}
	}
	refusal := dedupEntryOf(id, m.index, m.now+lifetime, client, &result)
	refusal.flags |= dedupReserve
	m.dedup.put(refusal, nil)
	return result
}

// reject records a refusal in the dedup table for each request that has an id and no recorded
// outcome. If the reserve is full, nothing is recorded, and the result is CodeNoReply. It returns
// the result of the last request that has an id. A leader that needs the result proposes one
// request per Reject.
func (m *Machine) reject(command *Command) (last Result) {
	for i := range command.Rejected {
		rejection := &command.Rejected[i]
		if rejection.ID.IsZero() {
			continue
		}
		if earlier, known := m.dedup.find(rejection.ID); known {
			m.prolong(earlier, rejection.Lifetime)
			last = m.dedup.result(&earlier)
			continue
		}
		result := overloaded(m.settings.dialect(rejection.Dialect))
		if rejection.Silent {
			result = Result{Code: CodeNoReply}
		}
		last = m.recordRefusal(rejection.ID, clientHash(rejection.ClientID), rejection.Lifetime,
			result)
	}
	return last
}

func overloaded(dialect Dialect) Result {
	return Result{Code: CodeError, Error: ErrorOverloaded, Dialect: dialect}
}

// write runs a client's write. It makes the checks in the order that the protocol defines.
func (m *Machine) write(position int, command *Command, storageLow bool, outcome *EntryOutcome) {
	result := &outcome.Results[position]
	result.Dialect = m.settings.dialect(command.Dialect)
	if code := m.checkRequest(command, &result.Rule); code != NoError {
		m.failCheck(command, result, code)
		return
	}
	switch command.Kind {
	case KindSet, KindDel, KindVDel:
		found := m.checkKey(position, command, outcome, result)
		if result.Code != CodeNone {
			return
		}
		var g growth
		g.add(command, found)
		if limit := m.exceededQuota(&g, command.owner(), storageLow); limit != NoLimit {
			result.failQuota(limit)
			return
		}
		m.change(position, command, found, outcome, result)
	case KindTxn:
		m.transact(position, command, storageLow, outcome)
	case KindKeyNotify:
		m.keyNotify(command, result)
	case KindKeyNotifyStop:
		m.keyNotifyStop(command, result)
	default: // KindInvalid always has an error
		result.fail(ErrorSyntax)
	}
}

// checkRequest makes the checks that do not read the key, and sets rule to the policy rule that
// allows the command. Reads use the same checks. No rule allows or forbids a SCAN or a watch of a
// pattern: the policy decides about each key.
func (m *Machine) checkRequest(command *Command, rule *uint16) ErrorCode {
	limits := &m.settings.Limits
	switch {
	case command.CaseError != NoError && !m.settings.CaseInsensitive:
		return command.CaseError
	case command.Error != NoError:
		return command.Error
	case command.Kind == KindScan:
		return m.checkScan(command)
	case command.Kind == KindTxn: // each operation is checked by itself
		return NoError
	case command.Oversize,
		int64(len(command.Key)) > limits.KeyBytes,
		int64(len(command.Value)) > limits.ValueBytes,
		int64(len(command.Expected)) > limits.ValueBytes,
		command.Kind == KindKeyNotify && !command.Pattern &&
			!fitsTopic(command.Principal.ClientID, command.Key):
		return ErrorQuota
	case command.LateError != NoError:
		return command.LateError
	case command.Unidentified:
		return ErrorNotAuthorized
	case command.Principal.ClientID == "" &&
		(command.Kind == KindKeyNotify || command.Kind == KindKeyNotifyStop):
		return ErrorNotAuthorized
	case m.settings.Policy == nil, command.Pattern:
		// the policy decides about each key that changes
		return NoError
	}
	number := m.settings.Policy.FirstRule(&command.Principal, command.Kind.access(), command.Key)
	if number == 0 {
		return ErrorNotAuthorized
	}
	*rule = uint16(min(number, math.MaxUint16))
	return NoError
}

// lookup returns the record of the key. A record whose deadline has passed is expired first and not
// returned.
func (m *Machine) lookup(position int, key []byte, outcome *EntryOutcome) (*record, bool) {
	found, ok := m.values.find(key)
	if ok && found.deadline <= m.now {
		m.expire(position, found, outcome)
		return nil, false
	}
	return found, ok
}

// withinStoreClock reports whether a timestamp is at or below the store's own clock. Such a
// timestamp cannot be too far ahead.
func (m *Machine) withinStoreClock(t *hlc.Timestamp) bool {
	return t.Wall < m.clock.Wall || (t.Wall == m.clock.Wall && t.Counter <= m.clock.Counter)
}

// skewed reports whether a timestamp would lead to a version that clients refuse for being too far
// ahead. One at or below the store's own clock never does.
func (m *Machine) skewed(t hlc.Timestamp) bool {
	if m.withinStoreClock(&t) {
		return false
	}
	clock := m.clock
	return t.TooFarAhead(m.wall) ||
		clock.Receive(t, m.wall).Timestamp(hlc.StoreNodeID).TooFarAhead(m.wall)
}

// checkKey makes the checks of a SET, DEL or VDEL that read the key, but for the quota. If the
// command must not change the key, checkKey sets result.Code. Otherwise the code stays CodeNone.
// checkKey returns the record of the key, or nil if the key does not exist or the timestamp is
// skewed.
func (m *Machine) checkKey(position int, command *Command, outcome *EntryOutcome,
	result *Result,
) *record {
	if command.Kind == KindSet && m.skewed(command.Timestamp) {
		result.fail(ErrorTimestampSkew)
		return nil
	}
	found, present := m.lookup(position, command.Key, outcome)
	if code := m.fence(&command.Token, found, present); code != NoError {
		result.fail(code)
		return found
	}
	switch {
	case !command.conditionIsMet(found, present):
		result.setNotApplied(found, present)
	case command.Kind == KindSet:
	case !present:
		result.Code = CodeMissing
	case command.Kind == KindVDel && found.value() != string(command.Value):
		result.setNotApplied(found, present)
	}
	return found
}

// change makes the change of a SET, DEL or VDEL whose checks have passed. found is the record of
// the key, or nil if there is none.
func (m *Machine) change(position int, command *Command, found *record, outcome *EntryOutcome,
	result *Result,
) {
	if command.Kind == KindSet {
		m.set(position, command, found, outcome, result)
		return
	}
	result.Code, result.version, result.hasVersion = CodeDeleted, found.version(), true
	m.values.delete(found)
	m.mixIntoStateHash('D', xxhash.Sum64String(found.key()))
	m.emitEvent(outcome, position, found, true)
}

func (m *Machine) set(position int, command *Command, found *record, outcome *EntryOutcome,
	result *Result,
) {
	version := m.clock.Receive(command.Timestamp, m.wall)
	stored := m.values.set(found, command.Key, command.Value, version, m.deadline(command.TTL),
		m.values.owners.holding(command.owner(), command.Token, found))
	m.mixIntoStateHash('S', xxhash.Sum64String(stored.data), uint64(stored.keySize),
		uint64(stored.deadline),
		uint64(command.Token.Wall), command.Token.Counter, xxhash.Sum64String(command.Token.NodeID),
		xxhash.Sum64String(stored.holding.owned.Name))
	m.emitEvent(outcome, position, stored, false)
	result.Code, result.version, result.hasVersion = CodeOK, version, true
}

// conditionIsMet reports whether the condition of a SET or a DEL holds for the key. found is its
// record, if it is present.
func (c *Command) conditionIsMet(found *record, present bool) bool {
	switch c.Condition {
	case IfAbsent:
		return !present
	case IfAbsentOrEqual:
		return !present || found.value() == string(c.Expected)
	case IfVersion:
		return present && found.version().Timestamp(hlc.StoreNodeID) == c.ExpectedVersion
	default:
		return true
	}
}

// setNotApplied makes the result of a command whose condition is not met. It has the version of the
// value, if there is one.
func (r *Result) setNotApplied(found *record, present bool) {
	*r = Result{Code: CodeNotApplied, Dialect: r.Dialect}
	if present {
		r.version, r.hasVersion = found.version(), true
	}
}

func (m *Machine) deadline(ttl int64) int64 {
	if ttl <= 0 {
		return noDeadline
	}
	// Cluster time is truncated to milliseconds. The added millisecond keeps a key for at least its
	// TTL.
	return m.now + min(ttl+1, noDeadline-1-m.now)
}

// growth is by how much changes of one client make the state, and what the client owns, larger;
// negative if they make it smaller.
type growth struct {
	keys, bytes           int64 // bytes are of keys and values
	ownedKeys, ownedBytes int64
}

// add adds the growth by a SET, DEL or VDEL. found is the record of the key, or nil if there is
// none.
func (g *growth) add(command *Command, found *record) {
	if found != nil {
		size := int64(len(found.data))
		g.keys, g.bytes = g.keys-1, g.bytes-size
		if found.holding.owned.Owner == command.owner() {
			g.ownedKeys, g.ownedBytes = g.ownedKeys-1, g.ownedBytes-size
		}
	}
	if command.Kind == KindSet {
		size := int64(len(command.Key) + len(command.Value))
		g.keys, g.bytes = g.keys+1, g.bytes+size
		g.ownedKeys, g.ownedBytes = g.ownedKeys+1, g.ownedBytes+size
	}
}

// exceededQuota returns why changes must be refused: they add keys or bytes, and a limit on all or
// on those of one owner would be exceeded, or a member's disk is nearly full. A limit of 0 is none.
func (m *Machine) exceededQuota(g *growth, owner Owner, storageLow bool) Limit {
	exceeds := func(used, added, limit int64) bool {
		return added > 0 && limit > 0 && used+added > limit
	}
	limits := &m.settings.Limits
	switch {
	case exceeds(int64(m.values.len()), g.keys, limits.Keys):
		return LimitKeys
	case exceeds(m.values.bytes, g.bytes, limits.TotalBytes):
		return LimitTotalBytes
	case storageLow && (g.keys > 0 || g.bytes > 0):
		return LimitDisk
	case limits.KeysPerClient == 0 && limits.BytesPerClient == 0:
		return NoLimit
	}
	its := m.values.owners.of(owner)
	switch {
	case exceeds(its.keys, g.ownedKeys, limits.KeysPerClient):
		return LimitKeysPerClient
	case exceeds(its.bytes, g.ownedBytes, limits.BytesPerClient):
		return LimitBytesPerClient
	default:
		return NoLimit
	}
}

func (m *Machine) configure(command *Command) {
	settings := *command.Settings
	if command.KeepPolicy {
		settings.Policy = m.settings.Policy
	}
	m.setSettings(settings, true)
	m.mixIntoStateHash('G', xxhash.Sum64(appendSettings(nil, &m.settings)))
}

// raiseClocks raises each clock to at least the floor. After a restore no version is used twice,
// and cluster time does not go back.
func (m *Machine) raiseClocks(floor *Floor) {
	m.clock.RaiseTo(floor.Clock.Timestamp(hlc.StoreNodeID))
	m.wall = max(m.wall, floor.Wall)
	if floor.Now > m.now {
		m.leader.start += floor.Now - m.now
		m.now = floor.Now
	}
}

func (r *Result) fail(code ErrorCode) {
	*r = Result{Code: CodeError, Error: code, Dialect: r.Dialect}
}

func (r *Result) failQuota(limit Limit) {
	r.fail(ErrorQuota)
	r.Limit = limit
}

// failCheck sets the result of a command that checkRequest refuses.
func (m *Machine) failCheck(command *Command, result *Result, code ErrorCode) {
	result.fail(code)
	if code == ErrorQuota {
		result.Limit = m.exceededSize(command)
	}
}

// fence checks a fencing token, if there is one, against the clock and the key. present says
// whether the key exists.
func (m *Machine) fence(token *hlc.Timestamp, found *record, present bool) ErrorCode {
	if token.TooFarAhead(m.wall) {
		return ErrorTokenSkew
	}
	if !present || found.holding.token.IsZero() {
		return NoError
	}
	if token.IsZero() {
		return ErrorTokenRequired
	}
	if token.Before(found.holding.token) {
		return ErrorTokenLower
	}
	return NoError
}
