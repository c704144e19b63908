// Package s3 keeps a store's objects in a bucket of any S3 server.
//
// # Where
//
// A URL says which bucket, and how to reach it (ParseURL):
//
//	s3://BUCKET[/PREFIX][?OPTION=VALUE&...]
//
//	endpoint=URL       of the server, http://HOST:PORT or https://...; else $AWS_ENDPOINT_URL_S3,
//	                   $AWS_ENDPOINT_URL, or Amazon's
//	region=NAME        else $AWS_REGION, $AWS_DEFAULT_REGION; us-east-1 if there is an endpoint
//	profile=NAME       of the shared configuration files; else $AWS_PROFILE
//	ca=FILE            certificates (PEM) that the server's may be signed with, beside the system's
//	addressing=host    the bucket is a part of the host name (default path with an endpoint)
//	anonymous=true     requests are not signed
//	conditional=off    the server has no conditional writes (see below)
//
// It never holds secrets. Credentials come from where every program of this
// kind looks: the environment ($AWS_ACCESS_KEY_ID ...), the shared files
// (~/.aws/config and credentials, with single sign-on and credential processes),
// a web identity or container role, the metadata service of the machine. They are
// asked for again when they expire, and when the server refuses them: keys that
// are replaced in a file are in use within seconds.
//
// # Promises
//
// Origin is a store.Origin; it makes one attempt at each thing and has no
// deadlines but those of its contexts and of connecting. Retries, bounds and deadlines are
// package remote's.
//
// What goes up has its MD5 with it, and the server refuses what arrived
// otherwise. Objects over 16 MiB go up in parts; an upload that fails is aborted,
// and Sweep aborts those of processes that died. What comes down is compared in
// place and length with what was asked for: the answer to another question, or a
// short one, is fault.Unavailable, since asking again may help; only an object
// that is itself too short is fault.Corrupt.
//
// Swap needs a server that honours If-Match and If-None-Match. Some ignore them,
// and two machines would overwrite each other's names: before its first Swap an
// Origin tries, and refuses if they do. With conditional=off it compares by
// itself, which is right as long as one server of Brisk uses the bucket.
//
// # Errors
//
// Invalid: the URL, no such bucket, another region. Machine: credentials that are missing,
// wrong, expired or not allowed to do it; a clock that is off. Unavailable: no
// connection, an overloaded or failing server, a broken answer. NotFound,
// Corrupt, DiskFull (of the server), Exists: as the contract says. Each that a user can do
// something about has a hint.
package s3
