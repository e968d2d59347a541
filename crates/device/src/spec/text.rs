//! A device's description read from text and printed as text.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

use floe_nbd::uri::Uri;

use super::error::SpecError;
use super::members::{self, Members};
use super::values::{Exact, parse_iops, parse_size, parse_time, write_timeout};
use super::{Kind, Spec};
use crate::buffer::SECTOR_BYTES;
use crate::medium::Medium;
use crate::nbd::NbdName;
use crate::rbd::RbdName;
use crate::stripe::CHUNK_BYTES;

impl Spec {
    /// Returns whether a text begins as a device's does: with a kind, or as a path.
    pub fn begins(text: &str) -> bool {
        let kinds = ["file:", "memory:", "mirror:", "stripe:", "rbd:"];
        is_path(text) || is_export(text) || kinds.iter().any(|kind| text.starts_with(kind))
    }
}

impl FromStr for Spec {
    type Err = SpecError;

    fn from_str(text: &str) -> Result<Spec, SpecError> {
        let spec = || text.to_owned();
        let (kind, rest) = match text {
            _ if is_path(text) => ("file", text),
            _ if is_export(text) => ("nbd", text),
            _ => text.split_once(':').ok_or_else(|| SpecError::Kind { spec: spec() })?,
        };
        if kind == "mirror" {
            let kind = Kind::Mirror(super::mirror::Mirror::parse(text, rest)?);
            return Ok(Spec { kind, volatile: false, medium: None, faults: None });
        }
        let mut parts = rest.split(',');
        let first = parts.next().unwrap_or_default();
        let members = (kind == "stripe").then(|| parse_members(text, first)).transpose()?;
        let known = match kind {
            "file" if first.is_empty() => return Err(SpecError::NoPath { spec: spec() }),
            "file" => {
                "size=SIZE, write-cache=volatile, medium=NAME, interference=off, iops=N and \
                 bandwidth=SIZE"
            }
            "memory" if first.is_empty() => return Err(SpecError::NoSize { spec: spec() }),
            "memory" => "medium=NAME, interference=off, iops=N and bandwidth=SIZE",
            "stripe" => members.as_ref().map_or("", Members::settings),
            "nbd" => "timeout=TIME, medium=NAME, interference=off, iops=N and bandwidth=SIZE",
            "rbd" => {
                "id=USER, conf=FILE, timeout=TIME, medium=NAME, interference=off, iops=N and \
                 bandwidth=SIZE"
            }
            _ => return Err(SpecError::Kind { spec: spec() }),
        };
        let (mut user, mut conf, mut timeout) = (None, None, None);
        let (mut size, mut chunk, mut write_cache, mut faults) = (None, None, None, None);
        let is_file = kind == "file" || matches!(members, Some(Members::Paths(_)));
        let is_image = kind == "rbd" || matches!(members, Some(Members::Images(_)));
        let is_remote = kind == "nbd" || is_image || matches!(members, Some(Members::Exports(_)));
        let (mut medium, mut interference) = (None::<Medium>, None);
        let (mut iops, mut bandwidth) = (None, None);
        for setting in parts {
            let (name, value) = setting.split_once('=').unwrap_or((setting, ""));
            let again = match name {
                "size" if kind == "stripe" => {
                    size.replace(parse_size(text, value, SECTOR_BYTES)?).is_some()
                }
                "chunk" if kind == "stripe" => {
                    chunk.replace(parse_size(text, value, SECTOR_BYTES)?).is_some()
                }
                "size" if kind == "file" => size.replace(parse_size(text, value, 512)?).is_some(),
                "id" if is_image && !value.is_empty() => user.replace(value).is_some(),
                "conf" if is_image && !value.is_empty() => conf.replace(value).is_some(),
                "timeout" if is_remote => timeout.replace(parse_time(text, value)?).is_some(),
                "write-cache" if is_file && value != "volatile" => {
                    return Err(SpecError::WriteCache { spec: spec(), found: value.to_owned() });
                }
                "write-cache" if is_file => write_cache.replace(value).is_some(),
                "medium" => {
                    let found = Medium::named(value).ok_or_else(|| SpecError::Medium {
                        spec: spec(),
                        medium: value.to_owned(),
                    })?;
                    medium.replace(found).is_some()
                }
                "faults" if !value.is_empty() => faults.replace(PathBuf::from(value)).is_some(),
                "interference" => interference.replace((setting, value)).is_some(),
                "iops" => iops.replace(parse_iops(text, value)?).is_some(),
                "bandwidth" => bandwidth.replace(parse_size(text, value, 1)?).is_some(),
                _ => {
                    return Err(SpecError::Setting {
                        spec: spec(),
                        setting: name.to_owned(),
                        known,
                    });
                }
            };
            if again {
                return Err(SpecError::Twice { spec: spec(), setting: name.to_owned() });
            }
        }
        match (&mut medium, interference) {
            (_, None) => {}
            (Some(medium), Some((_, "off"))) => medium.interference = &[],
            (_, Some((setting, _))) => {
                return Err(SpecError::Interference { spec: spec(), found: setting.to_owned() });
            }
        }
        match &mut medium {
            Some(medium) => medium.limit(iops, bandwidth),
            None if iops.is_some() || bandwidth.is_some() => {
                return Err(SpecError::NoMedium { spec: spec() });
            }
            None => {}
        }
        let export = |name: NbdName| NbdName { timeout, ..name };
        let (user, conf) = (user.map(str::to_owned), conf.map(PathBuf::from));
        let image =
            |name: RbdName| RbdName { user: user.clone(), conf: conf.clone(), timeout, ..name };
        let kind = match (kind, members) {
            (_, Some(members)) => Kind::Stripe {
                members: members.map(export, image),
                chunk: chunk.unwrap_or(CHUNK_BYTES),
                size,
            },
            ("file", _) => Kind::File { path: first.into(), size },
            ("nbd", _) => Kind::Nbd(export(parse_export(text, first)?)),
            ("rbd", _) => Kind::Rbd(image(parse_image(text, first)?)),
            _ => Kind::Memory { size: parse_size(text, first, SECTOR_BYTES)? },
        };
        Ok(Spec { kind, volatile: write_cache.is_some(), medium, faults })
    }
}

/// Returns whether a text is a path, which needs no `file:` before it.
fn is_path(text: &str) -> bool {
    ["/", "./", "../"].iter().any(|start| text.starts_with(start))
}

/// Returns whether a text is the URI of an export.
fn is_export(text: &str) -> bool {
    let scheme = text.split_once("://").map(|(scheme, _)| scheme);
    scheme.is_some_and(|scheme| matches!(scheme, "nbd" | "nbds" | "nbd+unix" | "nbds+unix"))
}

fn parse_export(spec: &str, text: &str) -> Result<NbdName, SpecError> {
    let problem = match text.parse::<Uri>() {
        Ok(uri) if !uri.tls => return Ok(NbdName { uri, timeout: None }),
        Ok(_) => "a device's connection does not speak TLS; put a tunnel before it".to_owned(),
        Err(error) => error.problem.to_string(),
    };
    Err(SpecError::Export { spec: spec.to_owned(), problem })
}

fn parse_image(spec: &str, text: &str) -> Result<RbdName, SpecError> {
    RbdName::parse(text).ok_or_else(|| SpecError::Image { spec: spec.to_owned() })
}

fn parse_members(spec: &str, text: &str) -> Result<Members, SpecError> {
    let texts = members::split(text);
    if texts.len() < 2 || texts.iter().any(|text| text.is_empty()) {
        return Err(SpecError::FewPaths { spec: spec.to_owned() });
    }
    for (at, path) in texts.iter().enumerate() {
        if texts[..at].contains(path) {
            let (spec, path) = (spec.to_owned(), (*path).to_owned());
            return Err(SpecError::SamePath { spec, path });
        }
    }
    let images: Vec<&str> = texts.iter().filter_map(|text| text.strip_prefix("rbd:")).collect();
    let exports: Vec<&str> = texts.iter().copied().filter(|text| is_export(text)).collect();
    match (images.len(), exports.len()) {
        (0, 0) => Ok(Members::Paths(texts.into_iter().map(PathBuf::from).collect())),
        (count, 0) if count == texts.len() => {
            let images = images.into_iter().map(|text| parse_image(spec, text));
            Ok(Members::Images(images.collect::<Result<_, _>>()?))
        }
        (0, count) if count == texts.len() => {
            let exports = exports.into_iter().map(|text| parse_export(spec, text));
            Ok(Members::Exports(exports.collect::<Result<_, _>>()?))
        }
        _ => Err(SpecError::MixedMembers { spec: spec.to_owned() }),
    }
}

/// The settings of an image that are not its name.
fn write_cluster(f: &mut fmt::Formatter<'_>, name: &RbdName) -> fmt::Result {
    name.user.as_ref().map_or(Ok(()), |user| write!(f, ",id={user}"))?;
    let conf = name.conf.as_ref();
    conf.map_or(Ok(()), |conf| write!(f, ",conf={}", conf.display()))?;
    write_timeout(f, name.timeout)
}

impl fmt::Display for Spec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.kind {
            Kind::File { path, size: None } => write!(f, "file:{}", path.display())?,
            Kind::File { path, size: Some(size) } => {
                write!(f, "file:{},size={}", path.display(), Exact(*size))?;
            }
            Kind::Memory { size } => write!(f, "memory:{}", Exact(*size))?,
            Kind::Rbd(name) => {
                write!(f, "rbd:{name}")?;
                write_cluster(f, name)?;
            }
            Kind::Nbd(name) => {
                write!(f, "{name}")?;
                write_timeout(f, name.timeout)?;
            }
            Kind::Mirror(mirror) => mirror.fmt(f)?,
            Kind::Stripe { members, chunk, size } => {
                write!(f, "stripe:{},chunk={}", members.names().join("+"), Exact(*chunk))?;
                size.map_or(Ok(()), |size| write!(f, ",size={}", Exact(size)))?;
                match members {
                    Members::Paths(_) => {}
                    Members::Exports(names) => write_timeout(f, names[0].timeout)?,
                    Members::Images(names) => write_cluster(f, &names[0])?,
                }
            }
        }
        if self.volatile {
            f.write_str(",write-cache=volatile")?;
        }
        if let Some(faults) = &self.faults {
            write!(f, ",faults={}", faults.display())?;
        }
        match &self.medium {
            None => Ok(()),
            Some(medium) => {
                write!(f, ",medium={}", medium.name)?;
                let Some(named) = Medium::named(medium.name) else { return Ok(()) };
                if named.interference != medium.interference {
                    f.write_str(",interference=off")?;
                }
                let (iops, bandwidth) = medium.limits_beside(&named);
                iops.map_or(Ok(()), |iops| write!(f, ",iops={iops}"))?;
                bandwidth.map_or(Ok(()), |bytes| write!(f, ",bandwidth={}", Exact(bytes)))
            }
        }
    }
}
