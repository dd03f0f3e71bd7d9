package history

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/anishathalye/porcupine"

	"holdfast/resp"
)

// A bank is a few accounts with the keys bank/generation/number. One transaction opens all of them
// with the same balance. Others move amounts between them, so their sum never changes. The value of
// an account is its balance, a blank, and a text that no other value has.
const (
	BankAccounts = 4
	BankOpening  = 100 // balance of each account
)

// bank is the state of the model: the value of each account, "" for an account that does not exist.
type bank [BankAccounts]string

// Account returns the number of the account that a key names. It panics if the key names none.
func Account(key string) int {
	number, err := strconv.Atoi(key[strings.LastIndexByte(key, '/')+1:])
	if err != nil || number < 0 || number >= BankAccounts {
		panic(fmt.Sprintf("account %q", key)) // a defect of the workload, which made the key
	}
	return number
}

// AccountValue returns the value of an account. unique is a text that no other value has.
func AccountValue(amount int, unique string) string { return fmt.Sprintf("%d %s", amount, unique) }

// Balance returns the balance in the value of an account. ok is false if the value has no balance.
func Balance(value string) (amount int, ok bool) {
	text, _, _ := strings.Cut(value, " ")
	amount, err := strconv.Atoi(text)
	return amount, err == nil
}

// Operations returns the operations of a transaction. For any other command it returns the command
// itself.
func (o *Op) Operations() []Op {
	if o.Verb == Txn {
		return o.Parts
	}
	return []Op{*o}
}

// isMet reports whether the condition of an operation on an account holds.
func (b *bank) isMet(o *Op) bool {
	switch value := b[Account(o.Key)]; o.Condition {
	case NX:
		return value == ""
	case NEX:
		return value == "" || value == o.Expected
	case IfVer:
		return value == o.Expected && value != ""
	default:
		return true
	}
}

// step reports whether a reply is right for a bank, and returns the bank after the operation. A nil
// reply is right for every bank.
func (b bank) step(o *Op, reply *resp.Reply) (bool, bank) {
	if reply != nil && reply.Kind == resp.ReplyError {
		return true, b
	}
	operations := o.Operations()
	for i := range operations {
		if !b.isMet(&operations[i]) {
			return reply == nil || reply.Kind == resp.ReplyNotApplied, b
		}
	}
	next, replies := b, make([]resp.Reply, len(operations))
	for i := range operations {
		n := Account(operations[i].Key)
		switch {
		case operations[i].Verb == Set:
			replies[i].Kind, next[n] = resp.ReplyOK, operations[i].Value
		case b[n] == "":
			replies[i].Kind = resp.ReplyNull
		default:
			replies[i] = resp.Reply{Kind: resp.ReplyBulk, Bulk: []byte(b[n])}
		}
	}
	if reply == nil {
		return true, next
	}
	got := []resp.Reply{*reply}
	if o.Verb == Txn {
		got = reply.Replies
	}
	return slices.EqualFunc(got, replies,
			func(a, b resp.Reply) bool {
				return a.Kind == b.Kind &&
					string(a.Bulk) == string(b.Bulk)
			}),
		next
}

func bankModel() porcupine.Model {
	return porcupine.Model{
		Init: func() any { return bank{} },
		Step: func(state, in, out any) (bool, any) {
			return state.(bank).step(in.(input).op, out.(*resp.Reply))
		},
		DescribeOperation: func(in, _ any) string { return in.(input).op.String() },
		DescribeState:     func(state any) string { return fmt.Sprintf("%q", state) },
	}
}

// checkBanks: a transaction that reads all accounts of a bank sees all or none of them, and always
// the same sum. There is one order of all operations on a bank that explains every reply.
func (j *judge) checkBanks() {
	banks := make(map[string][]*Op)
	for _, o := range j.history.Ops {
		if isBanking(o) {
			name := strings.Join(strings.Split(o.Key, "/")[:2], "/")
			banks[name] = append(banks[name], o)
			j.checkSum(o)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(banks)) {
		j.checkAgainstModel(bankModel(), name, banks[name])
	}
}

// isBanking reports whether an operation is on a bank. Watches of accounts are not.
func isBanking(o *Op) bool { return family(o.Key) == "bank" && o.Verb != Notify && o.Verb != Stop }

// checkSum checks the sum of a transaction that read all accounts.
func (j *judge) checkSum(o *Op) {
	if o.Verb != Txn || !o.Applied() {
		return
	}
	if len(o.Reply.Replies) != len(o.Parts) {
		j.violation("odd reply", "%s", o)
		return
	}
	sum, read, absent := 0, 0, 0
	for i := range o.Parts {
		if o.Parts[i].Verb != Get {
			return
		}
		switch amount, ok := Balance(string(o.Reply.Replies[i].Bulk)); {
		case o.Reply.Replies[i].Kind == resp.ReplyNull:
			absent++
		case ok:
			read++
			sum += amount
		}
	}
	j.findings.Sums++
	if absent != BankAccounts && (read != BankAccounts || sum != BankAccounts*BankOpening) {
		j.violation("transaction", "%s reads %d accounts with %d in all", o, read, sum)
	}
}
