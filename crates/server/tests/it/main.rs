//! The server, as clients and operators meet it.

mod hosts;
mod nbd_client_replies;
mod nbd_clients;
mod nbd_servers;
mod nbd_tls;
mod nvme_hosts;
mod nvme_reservations;
mod rig;
mod server;
