//! The server, as clients and operators meet it.

mod certificates;
mod nbd_client_replies;
mod nbd_clients;
mod nbd_servers;
mod nbd_tls;
mod rig;
mod server;
