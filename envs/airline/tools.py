"""The airline's tools by name."""

from temper.envs.airline import tools_read as read
from temper.envs.airline import tools_write as write
from temper.envs.service import tools as service

TOOLS = service.ToolSet(
    writing=(
        write.book_reservation,
        write.cancel_reservation,
        write.send_certificate,
        write.update_reservation_baggages,
        write.update_reservation_flights,
        write.update_reservation_passengers,
    ),
    reading=(
        service.calculate,
        read.get_reservation_details,
        service.get_user_details,
        read.list_all_airports,
        read.search_direct_flight,
        read.search_onestop_flight,
        service.think,
        service.transfer_to_human_agents,
    ),
)
