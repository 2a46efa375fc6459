"""The shop's tools by name."""

from temper.envs.retail import tools_read as read
from temper.envs.retail import tools_write as write
from temper.envs.service import tools as service

TOOLS = service.ToolSet(
    writing=(
        write.cancel_pending_order,
        write.exchange_delivered_order_items,
        write.modify_pending_order_address,
        write.modify_pending_order_items,
        write.modify_pending_order_payment,
        write.modify_user_address,
        write.return_delivered_order_items,
    ),
    reading=(
        service.calculate,
        read.find_user_id_by_email,
        read.find_user_id_by_name_zip,
        read.get_order_details,
        read.get_product_details,
        service.get_user_details,
        read.list_all_product_types,
        service.think,
        service.transfer_to_human_agents,
    ),
)
