//! The name of an image: `POOL[/NAMESPACE]/IMAGE[@SNAPSHOT]`, and who asks which cluster for it.

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

/// An image, and how its cluster is reached.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RbdName {
    /// The pool.
    pub pool: String,
    /// The namespace within the pool.
    pub namespace: Option<String>,
    /// The image.
    pub image: String,
    /// A snapshot of it, which is only read.
    pub snapshot: Option<String>,
    /// The user, without `client.`; the library's choice, `admin`, if none is given.
    pub user: Option<String>,
    /// The cluster's configuration file; where the library looks, if none is given.
    pub conf: Option<PathBuf>,
    /// Fail operations that the cluster has not answered for so long; without it they wait for it.
    pub timeout: Option<Duration>,
}

impl RbdName {
    /// Reads `POOL[/NAMESPACE]/IMAGE[@SNAPSHOT]`; `None` where a part is missing or empty.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let (place, snapshot) = match text.split_once('@') {
            Some((place, snapshot)) => (place, Some(snapshot)),
            None => (text, None),
        };
        let parts: Vec<&str> = place.split('/').collect();
        let (pool, namespace, image) = match parts[..] {
            [pool, image] => (pool, None, image),
            [pool, namespace, image] => (pool, Some(namespace), image),
            _ => return None,
        };
        let all = [Some(pool), namespace, Some(image), snapshot];
        if all.into_iter().flatten().any(|part| part.is_empty() || part.contains(['@', '\0'])) {
            return None;
        }
        Some(Self {
            pool: pool.to_owned(),
            namespace: namespace.map(str::to_owned),
            image: image.to_owned(),
            snapshot: snapshot.map(str::to_owned),
            user: None,
            conf: None,
            timeout: None,
        })
    }
}

/// `POOL[/NAMESPACE]/IMAGE[@SNAPSHOT]`, without the settings of the cluster.
impl fmt::Display for RbdName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/", self.pool)?;
        if let Some(namespace) = &self.namespace {
            write!(f, "{namespace}/")?;
        }
        f.write_str(&self.image)?;
        self.snapshot.as_ref().map_or(Ok(()), |snapshot| write!(f, "@{snapshot}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_has_a_pool_an_image_and_perhaps_a_namespace_and_a_snapshot() {
        for text in ["rbd/vm", "rbd/team/vm", "rbd/vm@monday", "rbd/team/vm@monday"] {
            assert_eq!(RbdName::parse(text).expect(text).to_string(), text);
        }
        let name = RbdName::parse("pool/space/image@snapshot").expect("it has all parts");
        assert_eq!((&*name.pool, &*name.image), ("pool", "image"));
        assert_eq!(name.namespace.as_deref(), Some("space"));
        assert_eq!(name.snapshot.as_deref(), Some("snapshot"));
        for text in ["", "vm", "rbd/", "/vm", "rbd//vm", "a/b/c/d", "rbd/vm@", "rbd/vm@a@b", "@a"] {
            assert_eq!(RbdName::parse(text), None, "{text}");
        }
    }
}
