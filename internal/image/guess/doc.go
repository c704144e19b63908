// Package guess names the chunks of an image that the start of a program is likely
// to read, when nobody has seen it start yet: the program and its interpreter, the
// libraries that it is linked with and the loader's files, and for Python the
// modules that every start imports and those that the user's code names.
//
// It is a guess: bounded (Spec.Limit), good enough to keep a disk or a link busy
// while the start itself asks for one chunk after the other, and never needed. What is left out
// is read when it is asked for. It looks at directories, which are metadata and
// here, and reads little else than what the program is going to read.
//
// A guess belongs to one goroutine. It blocks on the chunks that it reads.
package guess
