package seal

import (
	"encoding/base32"

	"brisk.dev/brisk/internal/fault"
)

// namePadding is the unit of bytes that names are padded to, so that their length
// tells little: the shortest that keeps a digest's digits, sealed, below 200
// characters, which every file system takes as a name.
const namePadding = 16

// nameText has digits that survive file systems that fold case.
var nameText = base32.NewEncoding("0123456789abcdefghijklmnopqrstuv").WithPadding(base32.NoPadding)

// SealName gives a name in which nobody without the keys can read name, always the
// same for the same kind and name: digits and lower-case letters, 1.6 for each
// byte and some 70 more.
func (k *Keys) SealName(kind, name string) string {
	plain := append([]byte(name), 0x80)
	for len(plain)%namePadding != 0 {
		plain = append(plain, 0)
	}
	return nameText.EncodeToString(k.synthetic(nil, k.nameKey(kind), nil, plain))
}

// OpenName gives the name that SealName sealed as one of that kind; fault.Corrupt
// for anything else.
func (k *Keys) OpenName(kind, sealed string) (string, error) {
	b, err := nameText.DecodeString(sealed)
	if err != nil || nameText.EncodeToString(b) != sealed {
		return "", fault.New(fault.Corrupt, "%q is not a sealed name", sealed)
	}
	plain, err := authentic(k.nameKey(kind), nil, b)
	if err != nil {
		return "", fault.New(fault.Corrupt, "the name %q does not authenticate with the key of workspace %q (%s)", sealed, k.workspace, k.id)
	}
	for len(plain) > 0 && plain[len(plain)-1] == 0 {
		plain = plain[:len(plain)-1]
	}
	if len(plain) == 0 || plain[len(plain)-1] != 0x80 {
		return "", fault.New(fault.Corrupt, "the name %q is not padded as a name", sealed)
	}
	return string(plain[:len(plain)-1]), nil
}

func (k *Keys) nameKey(kind string) [32]byte { return k.names.sum([]byte(kind)) }
