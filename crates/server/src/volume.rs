//! The volumes of a server, on backing devices that each of its threads opens for itself.

use std::fmt;
use std::sync::Arc;

use floe_device::{
    Device, Identity, ImageWitness, MirrorWatch, OpenError, Pool, RbdSource, Ring, Source, Witness,
};

/// A device that every thread of a server opens for itself; all handles refer to one device.
pub trait DeviceSource: fmt::Debug + Send + Sync {
    /// Returns its size in bytes at the last [`DeviceSource::refresh`], or at the start.
    fn size_bytes(&self) -> u64;

    /// Returns the device's identity, which stays the same at every start of the program.
    fn identity(&self) -> Identity {
        Identity::default()
    }

    /// Returns the name by which users know it.
    fn name(&self) -> String {
        "the device given".to_owned()
    }

    /// Returns whether another disk may have this name after a boot.
    fn has_kernel_name(&self) -> bool {
        false
    }

    /// Returns the image of Ceph that it is, if it is one.
    fn image(&self) -> Option<&RbdSource> {
        None
    }

    /// Returns whether its medium rotates, as far as that is known.
    fn rotates(&self) -> bool {
        false
    }

    /// Reads its size again and returns it.
    ///
    /// # Errors
    /// When the size cannot be read, or never changes.
    fn refresh(&self) -> std::io::Result<u64>;

    /// Has a function called when its size may have changed, by any thread and without a wait. Only
    /// devices that hear of that call it.
    fn on_change(&self, _notify: Box<dyn Fn() + Send + Sync>) {}

    /// Returns the witness for a mirror above it, if it can be one: an image of Ceph whose lock
    /// this program has.
    fn witness(&self) -> Option<Arc<dyn Witness>> {
        None
    }

    /// Returns the state of its halves, if it is a mirror.
    fn mirror(&self) -> Option<MirrorWatch> {
        None
    }

    /// Opens a handle for the thread with this ring and pool.
    ///
    /// # Errors
    /// When it cannot be opened.
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

/// Returns whether one of these block devices rotates; `+` is between their paths.
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

/// A volume to offer.
#[derive(Debug, Clone)]
pub struct Volume {
    /// The name clients ask for.
    pub name: String,
    /// A description for users; may be empty.
    pub description: String,
    /// The backing device.
    pub backing: Arc<dyn DeviceSource>,
    /// Refuse clients' writes.
    pub read_only: bool,
    /// The ways to reach it.
    pub reach: Reach,
}

/// The ways to reach a volume.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Reach {
    /// Clients of the server's addresses.
    #[default]
    Clients,
    /// A block device of this machine.
    Local,
    /// Both.
    Both,
}

impl Reach {
    /// Returns whether it is a block device of this machine.
    pub fn is_local(self) -> bool {
        self != Self::Clients
    }

    /// Returns whether clients of the server's addresses see it.
    pub fn has_clients(self) -> bool {
        self != Self::Local
    }
}
