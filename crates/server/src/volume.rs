//! The volumes of a server, and their backing devices, which each thread opens for itself.

use std::fmt;
use std::sync::Arc;

use floe_block::MOST_NAME_BYTES;
use floe_device::{
    Device, Identity, ImageWitness, MirrorWatch, OpenError, Pool, RbdSource, Ring, Source, Witness,
};
use floe_nvme::target::io::BlockSize;

use crate::volume_limit::RequestLimit;
use crate::volume_share::VolumeShare;

/// A device that every thread of a server opens for itself. All handles refer to the same device.
pub trait DeviceSource: fmt::Debug + Send + Sync {
    /// Returns the device's size in bytes at the last [`DeviceSource::refresh`], or at the start.
    fn size_bytes(&self) -> u64;

    /// Returns the device's identity, which is stable across restarts.
    fn identity(&self) -> Identity {
        Identity::default()
    }

    /// Returns the name by which users know the device.
    fn name(&self) -> String {
        "the device given".to_owned()
    }

    /// Returns whether the device's name may belong to another disk after a reboot.
    fn has_kernel_name(&self) -> bool {
        false
    }

    /// Returns the Ceph image behind the device, if there is one.
    fn image(&self) -> Option<&RbdSource> {
        None
    }

    /// Returns whether the device's medium rotates, as far as that is known.
    fn rotates(&self) -> bool {
        false
    }

    /// Determines the device's size again and returns it, in bytes.
    ///
    /// # Errors
    /// When the size cannot be read, or never changes.
    fn refresh(&self) -> std::io::Result<u64>;

    /// Makes the device at least `bytes` long. Open handles adopt the new size afterwards.
    ///
    /// # Errors
    /// When the device cannot have that size; it stays as it is.
    fn grow(&self, bytes: u64) -> Result<(), OpenError> {
        match bytes <= self.size_bytes() {
            true => Ok(()),
            false => Err(OpenError::FixedSize { name: self.name() }),
        }
    }

    /// Registers a function that is called when the device's size may have changed. Any thread may
    /// call it, and it must not block. Devices that cannot notice such changes never call it.
    fn on_change(&self, _notify: Box<dyn Fn() + Send + Sync>) {}

    /// Returns a witness for a mirror, if the device can be one: a Ceph image whose lock this
    /// program holds.
    fn witness(&self) -> Option<Arc<dyn Witness>> {
        None
    }

    /// Returns the state of the halves, if the device is a mirror.
    fn mirror(&self) -> Option<MirrorWatch> {
        None
    }

    /// Opens a handle for the thread with this ring and pool.
    ///
    /// # Errors
    /// When the device cannot be opened.
    fn open(&self, ring: &Ring, pool: &Pool) -> Result<Box<dyn Device>, OpenError>;
}

impl DeviceSource for Source {
    fn size_bytes(&self) -> u64 {
        Source::size_bytes(self)
    }

    fn identity(&self) -> Identity {
        Source::identity(self)
    }

    fn name(&self) -> String {
        Source::name(self)
    }

    fn image(&self) -> Option<&RbdSource> {
        Source::image(self)
    }

    fn grow(&self, bytes: u64) -> Result<(), OpenError> {
        Source::grow(self, bytes)
    }

    fn has_kernel_name(&self) -> bool {
        Source::has_kernel_name(self)
    }

    fn rotates(&self) -> bool {
        rotates(&Source::name(self))
    }

    fn refresh(&self) -> std::io::Result<u64> {
        Source::refresh(self)
    }

    fn on_change(&self, notify: Box<dyn Fn() + Send + Sync>) {
        if let Some(image) = self.image() {
            image.on_change(notify);
        }
    }

    fn witness(&self) -> Option<Arc<dyn Witness>> {
        let image = self.image().cloned();
        image.map(|image| Arc::new(ImageWitness::new(image)) as Arc<dyn Witness>)
    }

    fn mirror(&self) -> Option<MirrorWatch> {
        self.mirror_watch()
    }

    fn open(&self, ring: &Ring, pool: &Pool) -> Result<Box<dyn Device>, OpenError> {
        Source::open(self, ring, pool)
    }
}

/// A device source whose handles are wrapped, to act on their operations or results. It has neither
/// an image nor a witness.
pub(crate) struct WrappedSource<W> {
    inner: Arc<dyn DeviceSource>,
    wrap: W,
}

impl<W: Fn(Box<dyn Device>) -> Box<dyn Device> + Send + Sync> WrappedSource<W> {
    pub(crate) fn new(inner: Arc<dyn DeviceSource>, wrap: W) -> Self {
        Self { inner, wrap }
    }
}

impl<W> fmt::Debug for WrappedSource<W> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("WrappedSource").field(&self.inner).finish()
    }
}

impl<W: Fn(Box<dyn Device>) -> Box<dyn Device> + Send + Sync> DeviceSource for WrappedSource<W> {
    fn size_bytes(&self) -> u64 {
        self.inner.size_bytes()
    }

    fn identity(&self) -> Identity {
        self.inner.identity()
    }

    fn name(&self) -> String {
        self.inner.name()
    }

    fn has_kernel_name(&self) -> bool {
        self.inner.has_kernel_name()
    }

    fn rotates(&self) -> bool {
        self.inner.rotates()
    }

    fn refresh(&self) -> std::io::Result<u64> {
        self.inner.refresh()
    }

    fn on_change(&self, notify: Box<dyn Fn() + Send + Sync>) {
        self.inner.on_change(notify);
    }

    fn mirror(&self) -> Option<MirrorWatch> {
        self.inner.mirror()
    }

    fn open(&self, ring: &Ring, pool: &Pool) -> Result<Box<dyn Device>, OpenError> {
        Ok((self.wrap)(self.inner.open(ring, pool)?))
    }
}

/// Returns whether one of these block devices is a rotating disk. Their paths are separated by `+`.
fn rotates(paths: &str) -> bool {
    let queue = |path: &str| {
        let number = rustix::fs::stat(path).ok()?.st_rdev;
        let (major, minor) = (rustix::fs::major(number), rustix::fs::minor(number));
        let device = format!("/sys/dev/block/{major}:{minor}");
        // A partition has the queue of its disk.
        ["queue", "../queue"]
            .into_iter()
            .find_map(|queue| std::fs::read_to_string(format!("{device}/{queue}/rotational")).ok())
    };
    paths.split('+').filter_map(queue).any(|text| text.trim() == "1")
}

/// A volume that a server offers.
#[derive(Debug, Clone)]
pub struct Volume {
    /// Name by which clients choose the volume.
    pub name: String,
    /// Description that clients can show to users; may be empty.
    pub description: String,
    /// The backing device, which stores the volume's data.
    pub backing: Arc<dyn DeviceSource>,
    /// Refuses clients' writes.
    pub read_only: bool,
    /// The size of the logical blocks that NVMe hosts see.
    pub block_size: BlockSize,
    /// The limit of the volume's requests at first.
    pub limit: RequestLimit,
    /// The share of the volume in each tier.
    pub share: VolumeShare,
    /// The way in which the volume is used.
    pub reach: Reach,
}

/// Returns a message if a name is too long for the superblock of a persistent cache.
pub(crate) fn too_long(name: &str) -> Option<String> {
    let bytes = name.len();
    (bytes > MOST_NAME_BYTES).then(|| {
        format!(
            "name {name:?} has {bytes} bytes; with a persistent cache a volume's name has at most \
             {MOST_NAME_BYTES}"
        )
    })
}

/// The ways in which a volume can be used.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Reach {
    /// Network clients use the volume through the server's addresses.
    #[default]
    Clients,
    /// This machine uses the volume as a local block device.
    Local,
    /// Network clients and this machine use the volume.
    Both,
}

impl Reach {
    /// Returns whether the volume is a local block device of this machine.
    pub fn is_local(self) -> bool {
        self != Self::Clients
    }

    /// Returns whether network clients see the volume.
    pub fn has_clients(self) -> bool {
        self != Self::Local
    }
}
