package workload

import (
	"fmt"

	"holdfast/hlc"
	"holdfast/test/history"
)

// bankView is what a client knows of a bank (a few accounts, see package history). Each generation
// has a bank of its own.
type bankView struct {
	name string
	// the last value of each account that the client read or wrote; "" if none
	values [history.BankAccounts]string
	// single is the number of the account that the client last read by a GET alone. version is that
	// value's version, zero if not known.
	single  int
	version hlc.Timestamp
}

func (t *bankView) key(number int) string { return fmt.Sprintf("%s/%d", t.name, number) }

// transfers moves amounts between the accounts of a bank, and reads all of them at once. Several
// clients do so with the same accounts, so many transactions find that a balance is not what it
// was.
func (c *Client) transfers() {
	var t bankView
	for c.pause() {
		if name := fmt.Sprintf("bank/%d", c.generation()); name != t.name {
			t = bankView{name: name}
		}
		done, ok := c.Do(c.banking(&t))
		switch {
		case !ok:
		case done.Verb == history.Get:
			t.values[t.single], t.version = string(done.Reply.Bulk), done.Version
		case done.Applied():
			t.record(done)
		}
	}
}

// banking draws an operation on a bank.
func (c *Client) banking(t *bankView) history.Op {
	all := history.Op{Verb: history.Txn, Key: t.name}
	order := c.random.Perm(history.BankAccounts)
	from, to, other := order[0], order[1], order[2]
	n := c.random.IntN(8)
	switch known := t.values[from] != "" && t.values[to] != ""; {
	case !known && n < 4: // open it
		for number := range t.values {
			all.Parts = append(all.Parts, history.Op{
				Verb: history.Set, Key: t.key(number),
				Value:     history.AccountValue(history.BankOpening, c.part(number)),
				Condition: history.NX,
			})
		}
	case !known || n < 3:
		for number := range t.values {
			all.Parts = append(all.Parts, history.Op{Verb: history.Get, Key: t.key(number)})
		}
	case n == 3:
		t.single = from
		return history.Op{Verb: history.Get, Key: t.key(from)}
	case n == 4 && !t.version.IsZero():
		// a single SET beside the transactions; it keeps the balance
		value := t.values[t.single]
		amount, _ := history.Balance(value)
		return history.Op{
			Verb: history.Set, Key: t.key(t.single),
			Value:     history.AccountValue(amount, c.unique()),
			Condition: history.IfVer, Expected: value, ExpectedVersion: t.version,
		}
	default:
		// a transfer that also reads an account: the reply to a copy has to show the same value
		moved := 1 + c.random.IntN(10)
		all.Parts = []history.Op{
			t.add(from, -moved, c.part(from)),
			{Verb: history.Get, Key: t.key(other)},
			t.add(to, moved, c.part(to)),
		}
	}
	return all
}

// part returns a text that no other value has, for one of the SETs of an operation.
func (c *Client) part(number int) string { return fmt.Sprintf("%s/%d", c.unique(), number) }

// add returns the part of a transaction that adds amount to the balance of an account.
func (t *bankView) add(number, amount int, unique string) history.Op {
	before, _ := history.Balance(t.values[number])
	return history.Op{
		Verb: history.Set, Key: t.key(number), Value: history.AccountValue(before+amount, unique),
		Condition: history.NEX, Expected: t.values[number],
	}
}

// record records the values that an applied operation has read and written.
func (t *bankView) record(o *history.Op) {
	t.version = hlc.Timestamp{} // the account of single may have another value now
	if o.Verb == history.Txn && len(o.Reply.Replies) != len(o.Parts) {
		return // package history reports that
	}
	parts := o.Parts
	if o.Verb != history.Txn { // not all of o: a late copy of the request may be noted in it now
		parts = []history.Op{{Verb: o.Verb, Key: o.Key, Value: o.Value}}
	}
	for i, part := range parts {
		value := part.Value
		if part.Verb == history.Get {
			value = string(o.Reply.Replies[i].Bulk)
		}
		t.values[history.Account(part.Key)] = value
	}
}
