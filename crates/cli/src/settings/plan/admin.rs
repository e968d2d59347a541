//! The admin interface, understood: where it listens, and what its clients may do.

use std::path::PathBuf;

use floe_device::Spec;
use floe_server::AdminConfig;
use floe_server::admin::{AdminAddress, NoDefaultAddress, Token};

use super::super::{Settings, Wrong};
use super::{named, wrong};

/// The admin interface's settings, understood.
#[derive(Debug, Clone)]
pub(crate) struct AdminPlan {
    /// Empty for the default address, which depends on the server's user.
    listen: Vec<AdminAddress>,
    group: Option<Group>,
    token_file: Option<PathBuf>,
    hosts: Vec<String>,
    paths: Option<Vec<PathBuf>>,
}

/// A group that there is.
#[derive(Debug, Clone)]
struct Group {
    name: String,
    number: u32,
}

impl Group {
    fn find(name: &str) -> Result<Self, String> {
        let unknown = |problem: String| format!("there is no group `{name}`{problem}");
        let number = match name.parse() {
            Ok(number) => number,
            Err(_) => match nix::unistd::Group::from_name(name) {
                Ok(Some(group)) => group.gid.as_raw(),
                Ok(None) => return Err(unknown(String::new())),
                Err(error) => return Err(unknown(format!(": {error}"))),
            },
        };
        Ok(Self { name: name.to_owned(), number })
    }
}

impl AdminPlan {
    /// Understands the settings of the admin interface.
    pub(super) fn of(settings: &Settings) -> Result<Self, Wrong> {
        let listen = settings.admin.iter().map(|address| named("admin", address.parse()));
        let listen = listen.collect::<Result<Vec<AdminAddress>, _>>()?;
        let group =
            settings.admin_group.as_deref().map(|name| named("admin-group", Group::find(name)));
        let plan = Self {
            listen,
            group: group.transpose()?,
            token_file: settings.admin_token_file.clone(),
            hosts: settings.admin_hosts.clone(),
            paths: settings.admin_paths.clone(),
        };
        let of_tcp = [
            ("admin-token-file", plan.token_file.is_some()),
            ("admin-hosts", !plan.hosts.is_empty()),
        ];
        if let Some((setting, _)) = of_tcp.into_iter().find(|(_, given)| *given)
            && !plan.listen.iter().any(is_tcp)
        {
            let problem =
                format!("{setting} is for admin = HOST:PORT; here admin is a Unix socket");
            return Err(wrong(None, setting, problem));
        }
        if plan.group.is_some() && !plan.is_on_a_socket() {
            let problem = "admin-group is for a Unix socket; here admin is on TCP only";
            return Err(wrong(None, "admin-group", problem));
        }
        Ok(plan)
    }

    fn is_on_a_socket(&self) -> bool {
        self.listen.is_empty() || self.listen.iter().any(|address| !is_tcp(address))
    }

    /// Returns whether no client can change anything while the server runs.
    pub(crate) fn only_tells(&self) -> bool {
        !self.is_on_a_socket() && self.token_file.is_none()
    }

    /// Writes it as settings.
    pub(super) fn write(&self, settings: &mut Settings) {
        settings.admin = self.listen.iter().map(AdminAddress::to_string).collect();
        settings.admin_group = self.group.as_ref().map(|group| group.name.clone());
        settings.admin_token_file.clone_from(&self.token_file);
        settings.admin_hosts.clone_from(&self.hosts);
        settings.admin_paths.clone_from(&self.paths);
    }

    /// The server's part of the settings. Reads the token. `devices` are those it serves.
    ///
    /// # Errors
    /// When there is no default address, or no token in its file.
    pub(crate) fn config<'a>(
        &self,
        devices: impl Iterator<Item = &'a Spec>,
    ) -> Result<AdminConfig, String> {
        let listen = match self.listen.as_slice() {
            [] => vec![
                AdminAddress::of_server().map_err(|error: NoDefaultAddress| error.to_string())?,
            ],
            given => given.to_vec(),
        };
        let token = self.token_file.as_deref().map(Token::read).transpose();
        Ok(AdminConfig {
            listen,
            group: self.group.as_ref().map(|group| group.number),
            token: token.map_err(|error| format!("admin-token-file: {error}"))?,
            hosts: self.hosts.clone(),
            paths: self.paths.clone(),
            own_folders: folders_of(devices),
        })
    }
}

fn is_tcp(address: &AdminAddress) -> bool {
    matches!(address, AdminAddress::Tcp(_))
}

/// The folders of the files that are served. Those of disks are none: all disks are in one.
fn folders_of<'a>(devices: impl Iterator<Item = &'a Spec>) -> Vec<PathBuf> {
    let is_file = |path: &&PathBuf| {
        !path.starts_with("/dev") && path.metadata().map_or(true, |there| there.is_file())
    };
    let folder = |path: &PathBuf| {
        let folder = path.parent().unwrap_or(path);
        if folder.as_os_str().is_empty() { PathBuf::from(".") } else { folder.to_owned() }
    };
    let mut folders: Vec<PathBuf> =
        devices.flat_map(Spec::paths).filter(is_file).map(folder).collect();
    folders.sort();
    folders.dedup();
    folders
}
