//! The users of a block device: mounts, swap, and devices that stand on it.
//!
//! Sources: `proc_pid_mountinfo(5)`, `proc_swaps(5)`, and the kernel's
//! `Documentation/ABI/stable/sysfs-block` for `holders`.

use std::fs;
use std::path::Path;

/// Returns the uses of a block device and of its partitions, each as a phrase such as "mounted at
/// /srv". `device` is its name in `/dev`.
pub fn uses(device: &str) -> Vec<String> {
    let read = |path: &str| fs::read_to_string(path).unwrap_or_default();
    let folder = Path::new("/sys/block").join(device);
    let mut names = vec![device.to_owned()];
    names.extend(entries(&folder).into_iter().filter(|name| name.starts_with(device)));
    let number =
        |name: &String| read(&format!("/sys/class/block/{name}/dev")).trim_end().to_owned();
    let numbers: Vec<String> =
        names.iter().map(number).filter(|number| !number.is_empty()).collect();
    let mut found = mounts(&read("/proc/self/mountinfo"), &numbers);
    found.extend(swaps(&read("/proc/swaps"), &names));
    for name in names {
        let holders = entries(&Path::new("/sys/class/block").join(&name).join("holders"));
        found.extend(holders.into_iter().map(|holder| format!("a part of {holder}")));
    }
    found
}

fn entries(folder: &Path) -> Vec<String> {
    let listed = fs::read_dir(folder).into_iter().flatten().flatten();
    listed.filter_map(|entry| entry.file_name().into_string().ok()).collect()
}

/// Returns the places where devices of these numbers are mounted.
fn mounts(mountinfo: &str, numbers: &[String]) -> Vec<String> {
    let place = |line: &str| {
        let mut words = line.split(' ').skip(2);
        let number = words.next()?;
        let place = words.nth(1)?;
        let is_one = numbers.iter().any(|one| one == number);
        is_one.then(|| format!("mounted at {}", place.replace("\\040", " ")))
    };
    mountinfo.lines().filter_map(place).collect()
}

/// Returns the devices of these names that are used as swap.
fn swaps(table: &str, names: &[String]) -> Vec<String> {
    let used = |line: &str| {
        let name = line.split_whitespace().next()?.strip_prefix("/dev/")?;
        names.iter().any(|one| one == name).then(|| format!("swap on /dev/{name}"))
    };
    table.lines().skip(1).filter_map(used).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mounts_and_swap_are_found_by_number_and_name() {
        let info = "22 1 8:1 / / rw - ext4 /dev/sda1 rw\n\
                    30 22 259:0 / /my\\040disk rw,noatime shared:1 - ext4 /dev/ublkb0 rw\n\
                    31 22 259:1 /sub /bound rw - ext4 /dev/ublkb0p1 rw\n";
        let numbers = ["259:0".to_owned(), "259:1".to_owned()];
        assert_eq!(mounts(info, &numbers), ["mounted at /my disk", "mounted at /bound"]);
        assert!(mounts(info, &["8:10".to_owned()]).is_empty());
        let table = "Filename\tType\tSize\tUsed\tPriority\n/dev/ublkb0  partition 1 0 -2\n";
        assert_eq!(swaps(table, &["ublkb0".to_owned()]), ["swap on /dev/ublkb0"]);
        assert!(swaps(table, &["ublkb1".to_owned()]).is_empty());
    }

    #[test]
    fn an_absent_device_has_no_users() {
        assert!(uses("no-such-device").is_empty());
    }
}
