//! Names of volumes in buckets, and the errors of opening them.

use std::fmt;
use std::time::Duration;

/// The name of a volume in a bucket, and the settings to reach it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct S3Name {
    /// The name of the bucket.
    pub bucket: String,
    /// The common start of the names of the volume's objects, without a slash at its end.
    pub prefix: String,
    /// The volume's size in bytes, which creates a volume that does not exist.
    pub size: Option<u64>,
    /// The size of an object in bytes; 1 MiB for a new volume if absent.
    pub object: Option<u64>,
    /// The URL of the service; that of the environment, or of Amazon, if absent.
    pub endpoint: Option<String>,
    /// The region of the bucket; that of the environment, or us-east-1, if absent.
    pub region: Option<String>,
    /// The time for which a request is repeated before its operation fails; a minute if absent.
    pub timeout: Option<Duration>,
}

impl S3Name {
    /// Parses `//BUCKET/PREFIX`; `None` if a part is missing or empty.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let (bucket, prefix) = text.strip_prefix("//")?.split_once('/')?;
        let prefix = prefix.strip_suffix('/').unwrap_or(prefix);
        let is_odd = |part: &str| matches!(part, "" | "." | "..");
        if bucket.is_empty() || prefix.split('/').any(is_odd) {
            return None;
        }
        Some(Self {
            bucket: bucket.to_owned(),
            prefix: prefix.to_owned(),
            size: None,
            object: None,
            endpoint: None,
            region: None,
            timeout: None,
        })
    }
}

/// Prints `s3://BUCKET/PREFIX`, without settings.
impl fmt::Display for S3Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "s3://{}/{}", self.bucket, self.prefix)
    }
}

/// The reason why a volume in a bucket could not be opened.
#[derive(Debug, thiserror::Error)]
pub enum S3Error {
    /// The program was built without the feature `s3`.
    #[error("this floe was built without s3: build with --features s3")]
    NotBuilt,
    /// A bucket was named as a cache device.
    #[error("{0} cannot be a cache, which must be faster than its volume; name a file or a disk")]
    Cache(String),
    /// A request failed.
    #[error("cannot {what} {volume}: {reason}{}", advice(reason))]
    Request {
        /// The step that failed.
        what: &'static str,
        /// The name of the volume.
        volume: String,
        /// The error of the store, by its name.
        reason: String,
    },
    /// There is no volume, and no size to create it with.
    #[error("there is no volume at {0}; give the size of a new one: {0},size=1TiB")]
    Missing(String),
    /// The volume exists, but its size is not the requested one.
    #[error(
        "{volume} has {actual} bytes, not the {wanted} asked for; without size= it is used as it is"
    )]
    WrongSize {
        /// The name of the volume.
        volume: String,
        /// The volume's size in bytes.
        actual: u64,
        /// The requested size in bytes.
        wanted: u64,
    },
    /// The volume exists, but its objects have another size than requested.
    #[error(
        "{volume} has objects of {actual} bytes, not of {wanted}; leave out object=, which is for \
         new volumes"
    )]
    WrongObject {
        /// The name of the volume.
        volume: String,
        /// The size of the volume's objects in bytes.
        actual: u64,
        /// The requested size in bytes.
        wanted: u64,
    },
    /// Objects of a volume exist without its description.
    #[error(
        "{0} has objects of a volume but not its description, {0}/volume; bring that back, or \
         remove what is below the prefix"
    )]
    Leftover(String),
    /// The description was written by another program, or by a newer version.
    #[error("{0}/volume does not describe a volume of this version")]
    Description(String),
    /// Another server holds the lease.
    #[error("{volume} is in use by another server, {owner}; end that one, or serve it read-only")]
    Locked {
        /// The name of the volume.
        volume: String,
        /// The host and process of the server.
        owner: String,
    },
    /// The system refused a thread or its runtime.
    #[error("the system has no thread or random number for {volume}: {source}")]
    System {
        /// The name of the volume.
        volume: String,
        /// The error of the system.
        source: std::io::Error,
    },
}

/// Returns advice to the operator for an error of the store.
fn advice(reason: &str) -> &'static str {
    // The address of the service that has the credentials of a machine in Amazon's cloud.
    if reason.contains("169.254.169.254") {
        return "; there are no credentials: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY";
    }
    if reason.contains("No CA certificates") {
        return "; install the certificates of authorities (Debian's package ca-certificates), or \
                name a file of them in SSL_CERT_FILE";
    }
    let denied = ["AccessDenied", "SignatureDoesNotMatch", "InvalidAccessKeyId"];
    if denied.iter().any(|word| reason.contains(word)) {
        return "; check AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY and the rights to the bucket";
    }
    ""
}

#[cfg(test)]
mod name_tests {
    use super::*;

    #[test]
    fn a_name_has_a_bucket_and_a_prefix() {
        for text in ["s3://bucket/volume", "s3://my.bucket/team/vm 1"] {
            let name = S3Name::parse(&text[3..]).expect(text);
            assert_eq!(name.to_string(), text);
        }
        let name = S3Name::parse("//bucket/team/vm/").expect("a slash at the end is no part of it");
        assert_eq!((&*name.bucket, &*name.prefix), ("bucket", "team/vm"));
        for text in ["", "bucket/vm", "//bucket", "//bucket/", "///vm", "//b/a//c", "//b/../c"] {
            assert_eq!(S3Name::parse(text), None, "{text}");
        }
    }
}
