//! The members of a stripe: paths, images of Ceph or exports, all of one kind.

use std::path::PathBuf;

use crate::nbd::NbdName;
use crate::rbd::RbdName;

#[derive(Debug, Clone, PartialEq)]
pub(super) enum Members {
    Paths(Vec<PathBuf>),
    Exports(Vec<NbdName>),
    Images(Vec<RbdName>),
}

impl Members {
    pub(super) fn len(&self) -> usize {
        match self {
            Self::Paths(paths) => paths.len(),
            Self::Exports(names) => names.len(),
            Self::Images(names) => names.len(),
        }
    }

    /// The settings that may follow.
    pub(super) fn settings(&self) -> &'static str {
        match self {
            Self::Paths(_) => {
                "chunk=SIZE, size=SIZE, write-cache=volatile, medium=NAME, interference=off, \
                 iops=N and bandwidth=SIZE"
            }
            Self::Exports(_) => {
                "chunk=SIZE, size=SIZE, timeout=TIME, medium=NAME, interference=off, iops=N and \
                 bandwidth=SIZE"
            }
            Self::Images(_) => {
                "chunk=SIZE, size=SIZE, id=USER, conf=FILE, timeout=TIME, medium=NAME, \
                 interference=off, iops=N and bandwidth=SIZE"
            }
        }
    }

    /// The same with settings that hold for each.
    pub(super) fn map(
        self,
        export: impl Fn(NbdName) -> NbdName,
        image: impl Fn(RbdName) -> RbdName,
    ) -> Self {
        match self {
            Self::Paths(paths) => Self::Paths(paths),
            Self::Exports(names) => Self::Exports(names.into_iter().map(export).collect()),
            Self::Images(names) => Self::Images(names.into_iter().map(image).collect()),
        }
    }

    /// The names, without their settings.
    pub(super) fn names(&self) -> Vec<String> {
        match self {
            Self::Paths(paths) => paths.iter().map(|path| path.display().to_string()).collect(),
            Self::Exports(names) => names.iter().map(ToString::to_string).collect(),
            Self::Images(names) => names.iter().map(|name| format!("rbd:{name}")).collect(),
        }
    }

    pub(super) fn paths(&self) -> &[PathBuf] {
        match self {
            Self::Paths(paths) => paths,
            Self::Exports(_) | Self::Images(_) => &[],
        }
    }
}

/// The texts of the members. A `+` separates them, but for that in `nbd+unix://`.
pub(super) fn split(text: &str) -> Vec<&str> {
    let mut parts = Vec::new();
    let mut begin = 0;
    for (at, _) in text.match_indices('+') {
        let is_scheme = matches!(&text[begin..at], "nbd" | "nbds");
        if !(is_scheme && text[at + 1..].starts_with("unix://")) {
            parts.push(&text[begin..at]);
            begin = at + 1;
        }
    }
    parts.push(&text[begin..]);
    parts
}
