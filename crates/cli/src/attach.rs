//! `floe attach` and `floe detach`: make a volume a block device of this machine, and undo that.

use std::fs;
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};

use clap::Args;
use floe_server::admin::client::{self, Endpoint};
use floe_server::admin::{AdminAddress, Token};
use floe_server::ublk::{self, Found};
use floe_server::{Attached, Server};

use crate::error::{CliError, OrFail};

/// Folder in which each attached device has a link to its server's admin socket.
const LINKS: &str = "/run/floe";

/// Folder in which each attached device has a link with the name of its volume.
const DEVICES: &str = "/dev/floe";

const DETACH_EXAMPLES: &str = "\
Examples:
  floe detach /dev/ublkb0
  floe detach pictures              # by the name of its volume
  floe detach /dev/ublkb0 --admin /run/floe-2/admin.sock";

#[derive(Debug, Args)]
#[command(after_help = DETACH_EXAMPLES)]
pub(crate) struct DetachArguments {
    /// The block device that floe attach has printed, its link below /dev/floe, or the name of the
    /// volume
    device: PathBuf,
    /// The admin address of its server, unix:PATH or HOST:PORT [default: the one that floe attach
    /// has recorded]
    #[arg(long, value_name = "ADDRESS")]
    admin: Option<AdminAddress>,
    /// The file with the server's admin token, for changes over TCP
    #[arg(long, value_name = "FILE")]
    admin_token_file: Option<PathBuf>,
}

/// Records the admin socket of each attached device's server, so that `floe detach` finds it.
pub(crate) fn record(server: &Server, attached: &[Attached]) {
    let mut sockets = server.admin_addresses().filter_map(|address| match address {
        AdminAddress::Unix(path) => fs::canonicalize(path).ok(),
        AdminAddress::Tcp(_) => None,
    });
    let Some(socket) = sockets.next() else { return };
    for Attached { device, .. } in attached {
        if let Err(error) = link(&socket, &link_of(device)) {
            tracing::info!(
                %error, device = %device.display(),
                "floe detach needs --admin for its device"
            );
        }
    }
}

/// Removes the records of devices that are gone.
pub(crate) fn forget(attached: &[Attached]) {
    for Attached { device, .. } in attached {
        if !device.exists() {
            let _ = fs::remove_file(link_of(device)); // there may be none
        }
    }
}

fn link(socket: &Path, link: &Path) -> io::Result<()> {
    fs::create_dir_all(LINKS)?;
    match fs::remove_file(link) {
        Err(error) if error.kind() != ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    std::os::unix::fs::symlink(socket, link)
}

fn link_of(device: &Path) -> PathBuf {
    let name = device.file_name().unwrap_or_default().to_string_lossy();
    Path::new(LINKS).join(format!("{name}.sock"))
}

/// Returns the device that the user has given by its path or by the name of its volume or device.
fn device_of(given: &Path) -> Result<PathBuf, CliError> {
    let is_name = given.parent() == Some(Path::new(""));
    let path = if is_name { Path::new(DEVICES).join(given) } else { given.to_owned() };
    fs::canonicalize(path).or_else(|error| {
        // A device whose server has ended can be there without a node of its own.
        let name = given.file_name().unwrap_or_default();
        if name.to_string_lossy().starts_with("ublkb") {
            return Ok(Path::new("/dev").join(name));
        }
        let shown = given.display();
        let problem = format!("{shown}: {error}; attached volumes have links in {DEVICES}");
        Err(CliError::usage(problem))
    })
}

pub(crate) fn detach(arguments: &DetachArguments) -> Result<(), CliError> {
    let device = device_of(&arguments.device)?;
    let shown = device.display();
    let name = device.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let Some(number) = name.strip_prefix("ublkb").and_then(|number| number.parse().ok()) else {
        let problem = format!("{shown} is not a device of floe attach, such as /dev/ublkb0");
        return Err(CliError::usage(problem));
    };
    let found = ublk::find(number).or_failure()?;
    let uses = ublk::uses(&name);
    if !uses.is_empty() {
        return Err(CliError::failure(format!("{shown} is in use: {}", uses.join(", "))));
    }
    if found == Found::Waiting {
        // Nobody serves it: its requests fail, and the cache keeps its dirty data.
        return ublk::delete(number).or_failure();
    }
    let token = arguments.admin_token_file.as_deref().map(Token::read).transpose().or_usage()?;
    let link = || fs::canonicalize(link_of(&device)).ok().map(AdminAddress::Unix);
    let Some(address) = arguments.admin.clone().or_else(link) else {
        let problem = format!("cannot find the server of {shown}: give its address with --admin");
        return Err(CliError::usage(problem));
    };
    let server = Endpoint { address, token };
    let volumes = client::volumes(&server)?;
    if volumes.len() > 1 {
        let problem =
            format!("the server of {shown} serves {} volumes: floe stop ends it", volumes.len());
        return Err(CliError::failure(problem));
    }
    Ok(client::stop(&server)?)
}
