//! Parsing and printing of device specifications.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;
use std::sync::Arc;

use super::{DeviceSpec, Exact, Setting, Spec, SpecError};
use crate::file::FileSpec;
use crate::medium::Medium;
use crate::memory::MemorySpec;
use crate::mirror::MirrorSpec;
use crate::nbd::{NbdName, is_export};
use crate::rbd::RbdName;
use crate::s3::S3Name;
use crate::source::Imitation;
use crate::stripe::StripeSpec;

/// A parser for the text between the kind and the first comma. The first argument is the whole
/// text.
type Parse = fn(&str, &str) -> Result<Box<dyn DeviceSpec>, SpecError>;

/// The kinds of device and their parsers, by the word before the colon.
const DEVICES: [(&str, Parse); 7] = [
    ("file", FileSpec::parse),
    ("memory", MemorySpec::parse),
    ("mirror", MirrorSpec::parse),
    ("stripe", StripeSpec::parse),
    ("rbd", RbdName::parse_spec),
    ("s3", S3Name::parse_spec),
    ("nbd", NbdName::parse_spec), // or the word before `://`
];

/// Returns whether a text is a path, which needs no `file:` before it.
fn is_path(text: &str) -> bool {
    ["/", "./", "../"].iter().any(|start| text.starts_with(start))
}

impl Spec {
    /// Returns whether a text begins like a device specification: with a kind of device, or as a
    /// path.
    pub fn begins(text: &str) -> bool {
        let is_kind = |kind: &str| DEVICES.iter().any(|(name, _)| *name == kind && kind != "nbd");
        is_path(text)
            || is_export(text)
            || text.split_once(':').is_some_and(|(kind, _)| is_kind(kind))
    }
}

impl FromStr for Spec {
    type Err = SpecError;

    fn from_str(text: &str) -> Result<Spec, SpecError> {
        let spec = || text.to_owned();
        let (kind, rest) = match text {
            _ if is_path(text) => ("file", text),
            _ if is_export(text) => ("nbd", text),
            _ => text.split_once(':').ok_or_else(|| SpecError::Kind(spec()))?,
        };
        let (_, parse) = DEVICES
            .iter()
            .find(|(name, _)| *name == kind)
            .ok_or_else(|| SpecError::Kind(spec()))?;
        let mut parts = rest.split(',');
        let mut device = parse(text, parts.next().unwrap_or_default())?;
        let mut imitated = ImitationText::default();
        let mut seen = Vec::new();
        for part in parts {
            let (name, value) = part.split_once('=').unwrap_or((part, ""));
            let setting = Setting { spec: text, name, value };
            // A mirror's halves are storage that is used as it is.
            if !device.set(&setting)? && (kind == "mirror" || !imitated.set(&setting, part)?) {
                let (setting, known) = (name.to_owned(), device.settings());
                return Err(SpecError::Setting { spec: spec(), setting, known });
            }
            if seen.contains(&name) {
                return Err(SpecError::Twice(spec(), name.to_owned()));
            }
            seen.push(name);
        }
        let imitation = imitated.finish(text)?;
        device.finish(text)?;
        Ok(Spec { device: Arc::from(device), imitation })
    }
}

/// The settings for imitation, which most kinds of device accept.
#[derive(Default)]
struct ImitationText<'a> {
    medium: Option<Medium>,
    /// The whole `interference` setting, and its value.
    interference: Option<(&'a str, &'a str)>,
    iops: Option<u64>,
    bandwidth: Option<u64>,
    faults: Option<PathBuf>,
}

impl<'a> ImitationText<'a> {
    /// Applies a setting. Returns false if it does not concern imitation.
    fn set(&mut self, setting: &Setting<'a>, text: &'a str) -> Result<bool, SpecError> {
        let (spec, value) = (|| setting.spec.to_owned(), setting.value);
        match setting.name {
            "medium" => {
                let unknown = || SpecError::Medium { spec: spec(), medium: value.to_owned() };
                self.medium = Some(Medium::named(value).ok_or_else(unknown)?);
            }
            "faults" if !value.is_empty() => self.faults = Some(value.into()),
            "interference" => self.interference = Some((text, value)),
            "iops" => match value.parse() {
                Ok(iops) if iops > 0 => self.iops = Some(iops),
                _ => return Err(SpecError::Iops(spec(), value.to_owned())),
            },
            "bandwidth" => self.bandwidth = Some(setting.size(1)?),
            _ => return Ok(false),
        }
        Ok(true)
    }

    fn finish(mut self, spec: &str) -> Result<Imitation, SpecError> {
        let spec = || spec.to_owned();
        match (&mut self.medium, self.interference) {
            (_, None) => {}
            (Some(medium), Some((_, "off"))) => medium.interference = &[],
            (_, Some((setting, _))) => {
                return Err(SpecError::Interference(spec(), setting.to_owned()));
            }
        }
        match &mut self.medium {
            Some(medium) => medium.limit(self.iops, self.bandwidth),
            None if self.iops.is_some() || self.bandwidth.is_some() => {
                return Err(SpecError::NoMedium(spec()));
            }
            None => {}
        }
        Ok(Imitation { medium: self.medium, faults: self.faults })
    }
}

impl fmt::Display for Spec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.title())?;
        self.device.write_settings(f)?;
        if let Some(faults) = &self.imitation.faults {
            write!(f, ",faults={}", faults.display())?;
        }
        let Some(medium) = &self.imitation.medium else { return Ok(()) };
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
