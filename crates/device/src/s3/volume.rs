//! The description of a volume in a bucket, and the names of its objects.
//!
//! Below the prefix are `volume`, which describes it, `owner` with the lease, and the data as
//! `data/NUMBER`, 16 hexadecimal digits from zero.

use object_store::path::Path;

use super::DEFAULT_OBJECT;
use super::bucket::{Bucket, Failure, PutError, Version};
use super::name::{S3Error, S3Name};
use crate::system::random_id;

/// The first line of a description.
const FIRST_LINE: &str = "floe volume 1";

/// A volume's description and the places of its objects.
#[derive(Debug, Clone)]
pub(super) struct Volume {
    prefix: Path,
    /// 32 hexadecimal digits, drawn when the volume was created.
    pub(super) id: String,
    pub(super) size: u64,
    pub(super) object_bytes: u64,
}

impl Volume {
    /// Reads the description, or creates the volume if there is none and the name has a size.
    pub(super) async fn open(
        bucket: &Bucket,
        name: &S3Name,
        read_only: bool,
    ) -> Result<Volume, S3Error> {
        let prefix = Path::parse(&name.prefix).map_err(|error| S3Error::Request {
            what: "use the prefix of",
            volume: name.to_string(),
            reason: error.to_string(),
        })?;
        let failed = |what| {
            let volume = name.to_string();
            move |failure: Failure| S3Error::Request {
                what,
                volume,
                reason: reason(&failure, name),
            }
        };
        let at = prefix.clone().join("volume");
        loop {
            let found = bucket.get(&at, None).await.map_err(failed("open"))?;
            if found.version != Version::Missing {
                let text = String::from_utf8_lossy(&found.bytes);
                let volume = Self::parse(&text, prefix);
                let volume = volume.ok_or_else(|| S3Error::Description(name.to_string()))?;
                return volume.checked(name);
            }
            let Some(size) = name.size.filter(|_| !read_only) else {
                return Err(S3Error::Missing(name.to_string()));
            };
            if bucket.has_any(&prefix.clone().join("data")).await.map_err(failed("list"))? {
                return Err(S3Error::Leftover(name.to_string()));
            }
            let id = random_name()
                .map_err(|source| S3Error::System { volume: name.to_string(), source })?;
            let object_bytes = name.object.unwrap_or(DEFAULT_OBJECT);
            let volume = Volume { prefix: prefix.clone(), id, size, object_bytes };
            let text = volume.text().into();
            match bucket.put(&at, text, &Version::Missing, &volume.id).await {
                Ok(_) => return Ok(volume),
                Err(PutError::Conflict(_)) => continue, // another server was faster
                Err(PutError::Failed(failure)) => return Err(failed("create")(failure)),
            }
        }
    }

    fn text(&self) -> String {
        let Volume { id, size, object_bytes, .. } = self;
        format!("{FIRST_LINE}\nid {id}\nsize {size}\nobject {object_bytes}\n")
    }

    fn parse(text: &str, prefix: Path) -> Option<Volume> {
        let mut lines = text.lines();
        let mut value = |name: &str| lines.next()?.strip_prefix(name)?.strip_prefix(' ');
        value("floe").filter(|version| FIRST_LINE.ends_with(version))?;
        let id = value("id")?.to_owned();
        let size = value("size")?.parse().ok()?;
        let object_bytes = value("object")?.parse().ok()?;
        let is_whole = size > 0 && size % 512 == 0 && super::OBJECT_BYTES.contains(&object_bytes);
        (is_whole && object_bytes % 4096 == 0).then_some(Volume { prefix, id, size, object_bytes })
    }

    /// Returns the volume, or an error if the name has other sizes.
    fn checked(self, name: &S3Name) -> Result<Volume, S3Error> {
        let volume = name.to_string();
        match (name.size, name.object) {
            (Some(wanted), _) if wanted != self.size => {
                Err(S3Error::WrongSize { volume, actual: self.size, wanted })
            }
            (_, Some(wanted)) if wanted != self.object_bytes => {
                Err(S3Error::WrongObject { volume, actual: self.object_bytes, wanted })
            }
            _ => Ok(self),
        }
    }

    /// Returns the location of an object.
    pub(super) fn object(&self, number: u64) -> Path {
        self.folder().join(format!("{number:016x}"))
    }

    /// Returns the folder of the objects.
    pub(super) fn folder(&self) -> Path {
        self.prefix.clone().join("data")
    }

    /// Returns the number of the object at a location.
    pub(super) fn number(at: &Path) -> Option<u64> {
        u64::from_str_radix(at.filename()?, 16).ok()
    }

    /// Returns the location of the lease.
    pub(super) fn owner(&self) -> Path {
        self.prefix.clone().join("owner")
    }

    /// Returns the size of an object in bytes. The last one ends with the volume.
    pub(super) fn object_len(&self, number: u64) -> usize {
        self.object_bytes.min(self.size - number * self.object_bytes) as usize
    }

    /// Returns the objects that a range of the volume touches, with the range of each that it
    /// covers.
    pub(super) fn parts(
        &self,
        offset: u64,
        bytes: u64,
    ) -> impl Iterator<Item = (u64, std::ops::Range<usize>)> + use<> {
        let (end, object) = (offset + bytes, self.object_bytes);
        let numbers = offset / object..end.div_ceil(object);
        numbers.map(move |number| {
            let start = number * object;
            let from = offset.max(start) - start;
            (number, from as usize..(end.min(start + object) - start) as usize)
        })
    }
}

/// Draws a name of 32 hexadecimal digits.
pub(super) fn random_name() -> std::io::Result<String> {
    Ok(format!("{:032x}", u128::from_ne_bytes(random_id()?)))
}

/// Returns the reason of a failure without the volume's name, which the message has.
pub(super) fn reason(failure: &Failure, name: &S3Name) -> String {
    let text = &*failure.reason;
    text.strip_prefix(&format!("{name}: ")).unwrap_or(text).to_owned()
}

#[cfg(test)]
mod volume_tests {
    use super::*;

    #[test]
    fn a_description_is_read_as_it_was_written() {
        let volume = Volume {
            prefix: Path::from("p"),
            id: "ab".to_owned(),
            size: 5 << 20,
            object_bytes: 2 << 20,
        };
        let read = Volume::parse(&volume.text(), Path::from("p")).expect("it is whole");
        assert_eq!(format!("{read:?}"), format!("{volume:?}"));
        let texts = ["", "floe volume 2\nid a\nsize 512\nobject 65536\n"];
        let odd =
            ["floe volume 1\nid a\nsize 5\nobject 65536\n", "floe volume 1\nid a\nsize 512\n"];
        for text in texts.into_iter().chain(odd) {
            assert!(Volume::parse(text, Path::from("p")).is_none(), "{text}");
        }
        let parts: Vec<_> = read.parts((2 << 20) - 4096, 4 << 20).collect();
        let whole = 2 << 20;
        assert_eq!(
            parts,
            [(0, whole - 4096..whole), (1, 0..whole), (2, 0..whole - 4096)],
            "the parts follow each other"
        );
        assert_eq!((read.object_len(1), read.object_len(2)), (whole, 1 << 20));
    }
}
